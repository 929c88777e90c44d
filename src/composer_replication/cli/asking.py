"""Ask the user at a terminal."""

from __future__ import annotations


def agrees(question: str) -> bool:
    """Whether the user answers y or yes; the end of input (Ctrl-D) is a no.

    Example: agrees("Read the agent logs in ~/.claude/projects?")
    """
    try:
        answer = input(f"{question} [y/N] ")
    except EOFError:
        print()
        return False
    return answer.strip().lower() in ("y", "yes")
