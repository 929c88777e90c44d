"""Names in audit.json that its writer and its readers share; readers may have no PyTorch."""

from __future__ import annotations

ALL = "all"
"""The row for all kinds together."""
MEASURE = "log-odds at the decision over hints that advise something else and neutral text"
"""The measure that the gate reads; an audit.json with another measure is refused."""
NUM_DONORS = 3
"""Other sites' hints per site: one alone is too noisy (measured: 137 sites of a kind in place of 4
for the same power)."""
