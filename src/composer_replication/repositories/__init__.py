"""A user's own repositories as tasks with tests, and their players.

making/     repositories to tasks: what is changed, and the gates that a change passes
sandbox/    processes behind walls: test runs, and the trees in which episodes play
judging/    the judge of an episode, and the monitor of what it tried
playing/    an episode on a task: tools, tree, environment, draws

python/     the implementation of task_language.py, which is all that the four know of a language

checkout.py, environment.py, edits.py, repo_task.py and judged.py are what they speak about.
"""
