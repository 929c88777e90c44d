"""The workshop: a small coding environment whose tests really run. Import from its modules; this
file stays empty.

tasks.py (what is asked) · vocabulary.py (tool names) · env.py (one episode) · demonstrators.py
(scripted players) judge.py (what is believed of a player's files, and why), plain.py (which lines
can only compute) episodes.py (an episode as a Session) · sandbox.py (where code runs), isolation.py
and sandbox_worker.py (its other side)
"""
