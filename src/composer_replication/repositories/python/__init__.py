"""Python, as `repositories/task_language.py` asks for a language.

python_language.py      PYTHON: the implementation, by parts
python_files.py         which files are tests, the package, or kept out of a room
python_changes.py       bodies that are removed, small mistakes; hidden_tests.py: tests that are
python_environment.py   an interpreter with what the tests need
pytest_runner.py        tests of a tree, many times (pytest_worker.py is its inside)
judging/                the strong judge in the tests' interpreter, and the replays outside of it
monitor/                what the hack monitor reads in a module
"""
