"""An endpoint in front of the student, so that any agent program can be the player."""
