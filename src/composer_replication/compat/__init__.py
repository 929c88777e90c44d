"""The earlier framework's guide: its module paths, and its names that are gone or still to come.

names.py (the lists) · paths/ (one thin module per path: `from
composer_replication.trainer.data_collator import CollatorConfig`) guide_*.py (what the names do:
thin fronts of this package). See docs/coming_from_the_guide.md.
"""
