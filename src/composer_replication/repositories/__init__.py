"""A user's own repositories as tasks with tests: `recompose tasks make REPO...`.

Layout of a repository     checkout.py
Processes behind walls     tree_sandbox.py, tree_sandbox_child.py (its side inside)
Tests, one fork a run      test_runner.py, test_worker.py (its side inside)
What is changed            python_changes.py, candidates.py, history.py
What a task is             repo_task.py, statement.py, gates.py, vendored.py
All of it, resumable       survey.py, make_repo_tasks.py, attempts.py, environment.py
"""
