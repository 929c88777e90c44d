"""The workshop: a small coding environment whose tests really run, the warm-up of its students, and
the recorder of the demo's logs. Import from its modules; this file stays empty.

It plugs in like a user's own environment (workshop_tasks.py); no other layer imports it.

Tasks                tasks.py, vocabulary.py (tool names)
One episode          workshop_env.py, episodes.py (as a Session), as_tools.py (tools as methods)
Scripted players     demonstrators.py, scripted_teachers.py, lessons.py (their episodes as lessons)
Tests of a task      task_tests.py (of a player's files), plain.py (which lines only compute)
Sandbox              sandbox.py, sandbox_worker.py (the worker's side), core/isolation.py
From and to logs     record_episodes.py, recorded_task.py
"""
