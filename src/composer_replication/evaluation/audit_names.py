"""Names in audit.json that its writer and its readers share; readers may have no PyTorch."""

from __future__ import annotations

ALL = "all"
"""The row for all kinds together."""
MEASURE = "log-odds at the decision"
"""What the gate reads; an audit.json with another measure is refused."""
