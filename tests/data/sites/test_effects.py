"""What a shell line does to paths, and where it leaves the shell."""

from __future__ import annotations

import pytest

from composer_replication.data.sites.effects import RemovedPath, resolve, trace_effects
from composer_replication.data.sites.shell import parse

EVERYTHING = [
    "/w/a.go",
    "/w/data.go",
    "/w/dir",
    "/w/dir/b.go",
    "/w/dir2/c.go",
    "/w/src/a.go",
    "/tmp/x/a.go",
    "/home/me/z",
]


def left(line: str, cwd: str | None = "/w") -> list[str]:
    gone = trace_effects(parse(line), cwd).removed
    return [path for path in EVERYTHING if not any(removal.covers(path) for removal in gone)]


def without(*paths: str) -> list[str]:
    return [path for path in EVERYTHING if path not in paths]


@pytest.mark.parametrize(
    ("line", "rest"),
    [
        ("rm a.go", without("/w/a.go")),  # not data.go, not src/a.go
        ("rm -f ./a.go", without("/w/a.go")),
        ("rm -rf dir", without("/w/dir", "/w/dir/b.go")),  # not dir2
        ("rm -rf dir/", without("/w/dir", "/w/dir/b.go")),
        ("sudo rm -rf /w/dir", without("/w/dir", "/w/dir/b.go")),
        ("cd src && rm a.go", without("/w/src/a.go")),
        ("(cd src && ls); rm a.go", without("/w/a.go")),
        ("rm *.go", without("/w/a.go", "/w/data.go")),
        ("rm '*.go'", EVERYTHING),
        ("rm -- -x", EVERYTHING),
        ("rm 'a.go", []),  # an open quote: everything may be meant
        ("mv a.go z.go", without("/w/a.go")),
        ("mv dir other", without("/w/dir", "/w/dir/b.go")),
        ("mv -t dir2 a.go data.go", without("/w/a.go", "/w/data.go")),
        ("git mv a.go z.go", without("/w/a.go")),
        ("git -C src mv a.go z.go", without("/w/src/a.go")),
        ("git rm --cached a.go", EVERYTHING),
        ("git rm -r dir", without("/w/dir", "/w/dir/b.go")),
        ("cp a.go dir", EVERYTHING),
        ("git checkout -- a.go", EVERYTHING),
        ("git checkout -b new", EVERYTHING),
        ("git status && git add . && git commit -m 'rm a.go'", EVERYTHING),
        ("echo 'rm a.go'", EVERYTHING),
        ("echo rm a.go > notes", EVERYTHING),
        ("find /tmp/x -name '*.go' -delete", without("/tmp/x/a.go")),
        ("find . -type f -exec rm {} +", ["/tmp/x/a.go", "/home/me/z"]),
        ("find . -name x", EVERYTHING),
        ("bash -c 'rm a.go'", without("/w/a.go")),
        ("rm ~/z", []),  # whose home that is, /w does not say
        ("rm -rf /tmp/x/$NAME", without("/tmp/x/a.go")),
        ("cat <<'EOF' > n.sh\nrm -rf /w\nEOF", EVERYTHING),
        # nobody can say what these remove
        ("rm -rf $DIR", []),
        ("rm {a,data}.go", []),
        ("ls | xargs rm", []),
        ("git ls-files | xargs git rm", []),
        ("git checkout main", []),
        ("git switch main", []),
        ("git stash", []),
        ("git stash list", EVERYTHING),
        ("git reset --hard", []),
        ("git reset a.go", EVERYTHING),
        ("git clean -fd", []),
        ("git clean -nd", EVERYTHING),
        ("python -c 'import shutil; shutil.rmtree(\"x\")'", []),
        ("make clean", []),
    ],
)
def test_what_is_left_after_a_line(line: str, rest: list[str]) -> None:
    assert left(line) == rest


def test_a_relative_path_from_an_unknown_folder_can_be_any() -> None:
    assert left("rm a.go", None) == []
    assert left("rm /w/a.go", None) == without("/w/a.go")


@pytest.mark.parametrize(
    ("line", "created"),
    [
        ("mv a.go z.go", ("/w/z.go",)),
        ("mv a.go sub/", ("/w/sub", "/w/sub/a.go")),
        ("mv a.go b.go sub", ("/w/sub", "/w/sub/a.go", "/w/sub/b.go")),
        ("cp a.go $X", ()),
        ("mkdir -p x/y && touch x/y/z.py", ("/w/x/y", "/w/x/y/z.py")),
        ("echo 1 > out/x.txt", ("/w/out/x.txt",)),
        ("cd src && git mv a.go b.go", ("/w/src/b.go",)),
        ("ls 2>&1", ()),
    ],
)
def test_what_a_line_makes(line: str, created: tuple[str, ...]) -> None:
    assert trace_effects(parse(line), "/w").created == created


@pytest.mark.parametrize(
    ("line", "cwd"),
    [
        ("cd src", "/w/src"),
        ("cd src && cd ..", "/w"),
        ("cd /x; ls", "/x"),
        ("(cd src; ls)", "/w"),
        ("echo $(cd src; pwd)", "/w"),
        ("cd $X", None),
        ("cd -", None),
        ("pushd src", "/w/src"),
        ("popd", None),
    ],
)
def test_where_a_line_leaves_the_shell(line: str, cwd: str | None) -> None:
    assert trace_effects(parse(line), "/w").cwd == cwd


def test_where_each_command_of_a_line_stood() -> None:
    assert trace_effects(parse("ls && cd a && ls && (cd b && ls) && ls"), "/w").folders == [
        "/w",
        "/w",
        "/w/a",
        "/w/a",
        "/w/a/b",
        "/w/a",
    ]


def test_a_home_is_known_from_where_the_shell_stands() -> None:
    assert resolve("~/z", "/home/me/w") == "/home/me/z"
    assert resolve("~other/z", "/home/me/w") is None
    assert left("rm ~/z", "/home/me") == without("/home/me/z")


def test_a_pattern_does_not_reach_across_folders() -> None:
    assert not RemovedPath("/w/*.go", glob=True).covers("/w/src/a.go")
    assert RemovedPath("/w/*", glob=True).covers(
        "/w/src/a.go"
    )  # the folder goes, and what is in it
    assert RemovedPath("/w/**/x", glob=True).covers("/w/a/b/x")
