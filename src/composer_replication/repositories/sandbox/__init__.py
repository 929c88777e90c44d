"""Processes behind walls: test runs, and the trees in which episodes play.

The side inside is a Python interpreter whatever the language of a tree, so each tree has one; what
a language needs besides is in the (outside, inside) pairs of its sandbox.
"""
