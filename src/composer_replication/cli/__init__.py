"""The command line: one file per verb."""

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells report it."""
