"""Python's judge: the strong one in the tests' interpreter, and the replays outside of it."""
