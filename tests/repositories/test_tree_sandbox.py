"""The walls around a repository's tests: what a program inside can see, reach and leave behind."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from composer_replication.core.errors import SandboxError
from composer_replication.repositories.sandbox import tree_sandbox
from composer_replication.repositories.sandbox.tree_sandbox import ProcessLimits, TreeSandbox
from tests.repositories.shop import make_shop, needs_walls

pytestmark = needs_walls


def inside(code: str, tree: Path | None = None, *, limits: ProcessLimits | None = None) -> str:
    """What a program prints behind the walls."""
    process = TreeSandbox(limits=limits or ProcessLimits()).start(["-I", "-c", code], tree=tree)
    out, err = process.communicate(timeout=120)
    return (out + err).decode()


ATTEMPTS = {
    "network": "__import__('socket').create_connection(('127.0.0.1', {port}), 2)",
    "a home folder": "open('{home}/secret.txt').read()",
    "the host's users": "open('/etc/passwd').read()",
    "another process": "__import__('os').kill({process}, 0)",
    "the first process's files": "__import__('os').listdir('/proc/1/root/')",
    "its arguments' paths": "(_ for _ in ()).throw(OSError) if '{home}' not in"
    " open('/proc/1/cmdline').read() else 1",
    "pip": "__import__('pip').__version__",
    "the interpreter's packages": "open(__import__('os').__file__ + 'x', 'w')",
    "mounts": "(_ for _ in ()).throw(OSError) if"
    " __import__('ctypes').CDLL(None).mount(b'a', b'/tmp', b'tmpfs', 0, None) else 1",
    "four gigabytes": "len(bytearray(4 << 30))",
    "a file of 100 MB": "open('/tmp/big', 'wb').write(bytes(100 << 20))",
}


@pytest.mark.parametrize("what", list(ATTEMPTS))
def test_a_program_cannot_reach(what: str, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("s", encoding="utf-8")
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    attempt = ATTEMPTS[what].format(home=tmp_path, process=os.getpid(), port=port)
    code = "import signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    code += f"try:\n    {attempt}\nexcept BaseException as error:\n    print('stopped')\n"
    code += "else:\n    print('reached')\n"
    with server:
        assert inside(code).strip().endswith("stopped")


def test_packages_that_other_programs_bring_along_are_found(tmp_path: Path) -> None:
    for path in ("sdk/bin/run", "sdk/lib/a.py", "sdk/lib/more/b.py", "x86/libc.so", "python3/c.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("", encoding="utf-8")
    assert tree_sandbox.vendored_python(str(tmp_path)) == (str(tmp_path / "sdk/lib"),)


def test_no_python_code_of_other_programs_is_there() -> None:
    """One of them may hold a copy of the package that a task asks for."""
    code = """
import os
for parent, folders, files in os.walk('/usr/lib'):
    if parent == '/usr/lib':
        folders[:] = [name for name in folders if not name.startswith('python')]
    for name in files:
        if name.endswith('.py'):
            print(os.path.join(parent, name))
print('looked')
"""
    assert inside(code) == "looked\n"


def test_a_tree_can_stand_there_read_only(tmp_path: Path) -> None:
    """As the judge's does."""
    shop = make_shop(tmp_path / "shop")
    shop.chmod(0o755)
    code = "print(len(open('/repo/shop/cart.py').read())); open('/repo/new', 'w')"
    sandbox = TreeSandbox(read_only=((str(shop), "/repo"),))
    process = sandbox.start(["-I", "-c", code])
    out, err = process.communicate(timeout=120)
    assert int(out) == len((shop / "shop" / "cart.py").read_text(encoding="utf-8"))
    assert b"Read-only file system" in err


def test_a_program_works_on_a_copy_that_is_gone_with_it(tmp_path: Path) -> None:
    shop = make_shop(tmp_path / "shop")
    code = (
        "open('shop/cart.py', 'w').write('x'); open('new', 'w'); print(open('shop/cart.py').read())"
    )
    assert inside(code, shop).strip() == "x"
    assert "def total" in (shop / "shop/cart.py").read_text(encoding="utf-8")
    assert not (shop / "new").exists()


def test_processes_end_with_the_program() -> None:
    code = (
        "import os, subprocess, time\n"
        "subprocess.Popen(['/bin/sh', '-c', 'setsid sleep 77 & sleep 77 & wait'],"
        " stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)\n"
        "time.sleep(0.3)\n"
        "print(sum(p.isdigit() for p in os.listdir('/proc')))\n"
    )
    assert int(inside(code)) >= 4
    time.sleep(0.2)
    running = [
        path.read_bytes()
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if path.exists() and b"sleep\x0077\x00" in path.read_bytes()
    ]
    assert running == []


def test_a_program_has_few_processes() -> None:
    code = (
        "import os, time\nn = 0\n"
        "for _ in range(60):\n"
        "    try:\n        pid = os.fork()\n"
        "    except OSError:\n        break\n"
        "    if not pid:\n        time.sleep(20); os._exit(0)\n"
        "    n += 1\n"
        "print(n)\n"
    )
    assert int(inside(code, limits=ProcessLimits(processes=20))) < 20


def test_without_walls_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    hole = tree_sandbox._START.replace(
        "sys.exit(",
        "from composer_replication.core import isolation as i;"
        " i.this_machine = lambda: i.MACHINES['x86_64']._replace(pivot_root=9999); sys.exit(",
    )
    monkeypatch.setattr(tree_sandbox, "_START", hole)
    with pytest.raises(SandboxError, match="pivot_root failed"):
        TreeSandbox().check()
