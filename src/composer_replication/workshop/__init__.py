"""The workshop: a small coding environment whose tests really run, the warm-up of its students, and
the recorder of the demo's logs. Import from its modules; this file stays empty.

It plugs in like a user's own environment (workshop_tasks.py); nothing below this package knows it.

What is asked        tasks.py, vocabulary.py (tool names)
One episode          workshop_env.py, episodes.py (as a Session), as_tools.py (tools as methods)
Scripted players     demonstrators.py, scripted_teachers.py, lessons.py (their episodes as lessons)
What is believed     task_tests.py (of a player's files), plain.py (which lines only compute)
Where code runs      sandbox.py, isolation.py and sandbox_worker.py (its other side)
From and to logs     record_episodes.py, recorded_task.py
"""
