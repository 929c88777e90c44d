"""Environments in which a student acts: the protocol (env.py), and those that are built in."""
