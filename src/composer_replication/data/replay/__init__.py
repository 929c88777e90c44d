"""What other models would have done: answers at recorded turns, and what their agreement is worth.
Import from its modules.

ask.py (sessions -> answers, preferences and anchors) · agree.py (answers -> a verdict) ·
actions.py, tools.py, files.py (what a message does) · families.py (whose model it is) · evidence.py
(what else speaks against a message) · checks.py (null test, one family left out)
"""
