"""Small worlds, one for each kind of mistake that no tool reports, for kinds_twins.py."""
