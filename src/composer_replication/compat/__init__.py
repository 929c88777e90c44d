"""The earlier framework's guide: its module paths, and its names that are gone or still to come.

names.py (the lists) · paths/ (one thin module per path: `from composer_replication.trainer.data_collator import CollatorConfig`)
What the names *do* stands with what they belong to: core/guide.py, data/guide.py, tokens/guide.py, ... (docs/coming_from_the_guide.md)
"""
