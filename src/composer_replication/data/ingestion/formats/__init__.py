"""Logs of other agents: one module per format, and a registry that tells them apart by content."""
