"""What other models would have done: answers at recorded turns, and what their agreement is worth. Import from its modules.

agree.py (answers -> a verdict) · ask.py (sessions -> answers, preferences and anchors)
"""
