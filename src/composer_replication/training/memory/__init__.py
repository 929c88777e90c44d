"""What a step needs in memory, computed before anything is loaded."""
