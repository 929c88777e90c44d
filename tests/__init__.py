"""A package of its own: the wheel of verl installs one of this name, which would hide ours."""
