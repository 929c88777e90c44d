"""A user's own repositories as tasks with tests, and their players.

making/     repositories to tasks: what is changed, and the gates that a change passes
sandbox/    processes behind walls: test runs, and the trees in which episodes play
judging/    the judge of an episode, and the monitor of what it tried
playing/    an episode on a task: tools, tree, environment, draws

checkout.py, environment.py, python_changes.py and repo_task.py are what all four speak about.
"""
