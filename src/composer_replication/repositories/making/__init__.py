"""Repositories to tasks: what is changed, and the gates that a change passes."""
