"""The run directory as plain values (data.py); pages and charts come with a later issue. Imports core only."""
