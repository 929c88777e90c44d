"""Words as a shell splits them."""

from __future__ import annotations

import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.data.sites.shell import Simple, parse
from composer_replication.data.sites.shell_words import OpenQuoteError, Operator, ShellWord, split


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("rm 'a b' \"c d\" e\\ f", ["rm", "a b", "c d", "e f"]),
        ("a&&b||c;d|e&", ["a", "&&", "b", "||", "c", ";", "d", "|", "e", "&"]),
        ("x 2>/dev/null >>out 2>&1", ["x", ">", "/dev/null", ">>", "out", ">&", "1"]),
        ("echo a#b # note; rm x\nls", ["echo", "a#b", "\n", "ls"]),
        ('echo "it\'s" \'say "x"\'', ["echo", "it's", 'say "x"']),
        ("a \\\n b", ["a", "b"]),
        ("echo $'a\\'b' c", ["echo", "a\\'b", "c"]),
        ('echo "a $(ls "b c") d"', ["echo", 'a $(ls "b c") d']),
        ("diff <(ls a) <(ls b)", ["diff", "<(ls a)", "<(ls b)"]),
        ("''", [""]),
    ],
)
def test_words_and_operators(line: str, words: list[str]) -> None:
    assert [token.text for token in split(line)] == words


def word(line: str) -> ShellWord:
    (only_word,) = split(line)
    assert isinstance(only_word, ShellWord)
    return only_word


def test_a_word_says_whether_the_shell_would_still_change_it() -> None:
    assert [(word(w).glob, word(w).expands) for w in ("*.go", "'*.go'", '"*.go"', "\\*.go")] == [
        (True, False)
    ] + 3 * [(False, False)]
    expanded = ("$X", '"$X"', "${X}/a", "a{b,c}", "`ls`")
    assert all(word(w).expands for w in expanded)
    assert not any(word(w).expands for w in ("'$X'", "'a{b,c}'", "a$"))
    assert word("x$(git rev-parse a)`pwd`").commands == ("git rev-parse a", "pwd")
    assert word("${X:-$(ls)}").commands == ()


@pytest.mark.parametrize(
    "line", ["echo 'a", 'echo "a', "echo $(ls", "echo `ls", 'echo "$(ls"', "echo ${X"]
)
def test_what_is_never_closed_is_told(line: str) -> None:
    with pytest.raises(OpenQuoteError):
        split(line)


@given(st.text(alphabet="ab '\"\\$(){}`;|&<>\n*#=-", max_size=40))
def test_any_line_is_split_or_refused_and_always_parsed(line: str) -> None:
    with contextlib.suppress(OpenQuoteError):
        assert all(isinstance(token, ShellWord | Operator) for token in split(line))
    assert all(isinstance(command, Simple) for command in parse(line).simple)


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("VAR=1 time go test", ["go"]),
        ("time VAR=1 go test", ["go"]),
        ("sudo -u me rm x", ["rm"]),
        ("env -u A B=2 nohup nice -n 10 timeout -k 5 10s make", ["make"]),
        ("git ls-files | xargs -n 1 -I{} rm {}", ["git", "rm"]),
        ("command git status", ["git"]),
        ("# say why\nls", ["ls"]),
        ("X=$(git rev-parse HEAD) && echo $X", ["git", "echo"]),
        ("(cd a && ls)", ["cd", "ls"]),
        ("if grep -q x a; then rm a; fi", ["grep", "rm", "fi"]),
    ],
)
def test_wrappers_assignments_and_comments_are_no_programs(line: str, names: list[str]) -> None:
    assert [command.name for command in parse(line).simple] == names


def test_a_name_that_is_given_twice_is_not_filled_in() -> None:
    assert parse("A=x; cat $A").simple[-1].words == ("x",)
    twice = parse("A=x; cat $A; A=y; cat $A").simple[-1]
    assert (twice.words, twice.open) == (("$A",), frozenset({"$A"}))


@pytest.mark.parametrize(
    "line",
    [
        "rm {" + "," * 100_000,
        "$(" * 50_000,
        "echo " + "$(a " * 10_000 + ")" * 10_000,
        "1> " * 30_000,
        "{" * 100_000,
    ],
)
def test_a_line_made_to_take_forever_does_not(line: str) -> None:
    started = time.process_time()
    parse(line)
    assert time.process_time() - started < 20
