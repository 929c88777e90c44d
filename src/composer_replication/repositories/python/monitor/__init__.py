"""What the hack monitor reads in a module of Python."""
