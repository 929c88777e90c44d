"""Make .venv with the pinned packages and this project in it; does nothing if it is up to date.

    python3 scripts/setup.py            (make setup)

PyTorch comes first and alone, because on Linux the default build of the index pulls in several GB
of CUDA packages:

1. If COMPOSER_TORCH_INDEX is set: from that index (PyTorch publishes one with CPU builds, and one
   per CUDA version).
2. If there is a GPU, or the system is not Linux: the pinned version as pip finds it.
3. Otherwise pip says, without downloading, which file it would take. A build that needs no CUDA
   package is installed; for any other the set-up stops and says what to do. COMPOSER_TORCH_CUDA=1
   installs it anyway.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PINS = ("base.txt", "train.txt", "dev.txt")
CUDA_PACKAGE = re.compile(r"^(nvidia|cuda)[-_]", re.IGNORECASE)
STOPPED = """setup: this machine has no GPU, but pip would install a CUDA build of PyTorch
  ({count} extra CUDA packages, several GB).
  CPU build:     COMPOSER_TORCH_INDEX=<address of PyTorch's CPU index> make setup
                 (the address is under "Get started" on PyTorch's site)
  or a file:     PIP_FIND_LINKS=<folder with a CPU wheel of torch {version}> make setup
  CUDA anyway:   COMPOSER_TORCH_CUDA=1 make setup"""


def python_in_venv() -> Path:
    """The interpreter of .venv."""
    return VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def stamp() -> str:
    """A hash of everything the environment depends on."""
    parts = [platform.python_version(), platform.platform(terse=True), str(ROOT)]
    parts += [(ROOT / "requirements" / name).read_text("utf-8") for name in PINS]
    parts.append((ROOT / "pyproject.toml").read_text("utf-8"))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def pip(*args: str, capture: bool = False) -> subprocess.CompletedProcess[str]:
    """Run the environment's pip; unless `capture` is set, a failure ends the set-up."""
    command = [str(python_in_venv()), "-m", "pip", "--disable-pip-version-check", *args]
    process = subprocess.run(command, capture_output=capture, text=True, check=False)
    if process.returncode != 0 and not capture:
        sys.exit(f"setup: failed: pip {' '.join(args)}")
    return process


def pinned(package: str) -> str:
    """The pinned requirement of one package, e.g. "torch==2.13.0"."""
    for name in PINS:
        for line in (ROOT / "requirements" / name).read_text("utf-8").splitlines():
            if line.split("==")[0].strip().lower() == package:
                return line.strip()
    sys.exit(f"setup: no pin for {package} in requirements/")


def has_gpu() -> bool:
    """Whether the machine shows an NVIDIA GPU."""
    if Path("/dev/nvidia0").exists():
        return True
    tool = shutil.which("nvidia-smi")  # the only sign under WSL
    return (
        tool is not None
        and subprocess.run([tool, "-L"], capture_output=True, check=False).returncode == 0
    )


def cuda_packages(requirement: str) -> list[str]:
    """The CUDA packages on which pip's choice for a requirement depends, read from its metadata."""
    process = pip(
        "install",
        "--dry-run",
        "--quiet",
        "--ignore-installed",
        "--no-deps",
        "--report",
        "-",
        requirement,
        capture=True,
    )
    if process.returncode != 0:
        sys.exit(
            f"setup: pip finds no {requirement} for Python"
            f" {platform.python_version()}:\n{process.stderr.strip()}"
        )
    chosen = json.loads(process.stdout)["install"][0]["metadata"]
    return [
        need
        for need in chosen.get("requires_dist", [])
        if CUDA_PACKAGE.match(need) and "extra ==" not in need
    ]


def install_torch() -> None:
    """Install the pinned PyTorch, but no CUDA build on a machine without a GPU unless asked."""
    requirement, index = pinned("torch"), os.environ.get("COMPOSER_TORCH_INDEX", "")
    if index:
        pip("install", "--quiet", "--index-url", index, requirement)
        return
    if sys.platform == "linux" and not has_gpu() and os.environ.get("COMPOSER_TORCH_CUDA") != "1":
        needed = cuda_packages(requirement)
        if needed:
            sys.exit(STOPPED.format(count=len(needed), version=requirement.split("==")[1]))
    pip("install", "--quiet", requirement)


def main() -> None:
    """Create or refresh .venv; quick if the stamp says that nothing changed."""
    if sys.version_info < (3, 11):  # noqa: UP036 - this script is what tells a user so
        sys.exit(
            f"setup: Python 3.11 or newer is needed, this is {platform.python_version()}; run: make"
            " setup PYTHON=python3.12"
        )
    stamp_file = VENV / ".stamp"
    wanted = stamp()
    if (
        stamp_file.exists()
        and stamp_file.read_text("utf-8") == wanted
        and python_in_venv().exists()
    ):
        return
    start = time.monotonic()
    print("setup: .venv (PyTorch first, then the pinned packages)", flush=True)
    if VENV.exists():
        stamp_file.unlink(missing_ok=True)
    if not python_in_venv().exists():
        venv.create(VENV, with_pip=True, clear=True)
    version = pip("--version", capture=True).stdout.split()[1]
    if int(version.split(".")[0]) < 24:  # older ones download a whole wheel to read its metadata
        pip("install", "--quiet", "--upgrade", "pip>=24")
    install_torch()
    pip(
        "install",
        "--quiet",
        *(arg for name in PINS for arg in ("-r", str(ROOT / "requirements" / name))),
    )
    pip("install", "--quiet", "--no-deps", "--no-build-isolation", "-e", str(ROOT))
    stamp_file.write_text(wanted, "utf-8")
    print(f"setup: done in {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
