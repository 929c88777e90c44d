"""The names and module paths of the earlier framework's guide.

names.py (which path holds which names, and which are gone or still to come) · paths/ (one thin
module per path: `from composer_replication.trainer.data_collator import CollatorConfig`) ·
guide_*.py (what the names do: thin fronts of this package). See docs/coming_from_the_guide.md.
"""
