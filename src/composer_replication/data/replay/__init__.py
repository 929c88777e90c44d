"""Other models' answers at recorded turns, and their agreement.

Import from its modules: ask.py (sessions -> answers, preferences and anchors) · agree.py (answers
-> a verdict) · actions.py, agent_tools.py, viewed_files.py (what a message does) ·
model_families.py (who made a model) · counter_evidence.py (what else speaks against a message) ·
checks.py (null test, leave one family out) · gather.py, prompt.py, price_gate.py, judging.py,
estimate.py (asking, and its cost)
"""
