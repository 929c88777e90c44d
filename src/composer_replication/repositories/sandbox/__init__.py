"""Processes behind walls: test runs, and the trees in which episodes play."""
