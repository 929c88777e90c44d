"""Write examples/demo_logs: eight short made-up sessions in two made-up repositories, one or more
per era.

    python examples/make_demo_logs.py            write the folder; the files are always the same
    python examples/make_demo_logs.py --check    exit with 1 if a committed file differs
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from demo_inkwell import inkwell_logs
from demo_tidepool import tidepool_logs

FOLDER = Path(__file__).resolve().parent / "demo_logs"


def write_logs(folder: Path) -> list[Path]:
    """Write every log below `folder` and return the paths."""
    return sorted(
        [*inkwell_logs(folder / "-home-dev-inkwell"), *tidepool_logs(folder / "-home-dev-tidepool")]
    )


def main() -> int:
    """Write the logs, or check that they are as committed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare only")
    if not parser.parse_args().check:
        for path in write_logs(FOLDER):
            print(path.relative_to(FOLDER.parent))
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        fresh = {p.relative_to(scratch): p.read_bytes() for p in write_logs(Path(scratch))}
    committed = {p.relative_to(FOLDER): p.read_bytes() for p in FOLDER.rglob("*.jsonl")}
    different = sorted(
        str(p) for p in fresh.keys() | committed.keys() if fresh.get(p) != committed.get(p)
    )
    print("\n".join(different) or "demo logs are as committed")
    return bool(different)


if __name__ == "__main__":
    sys.exit(main())
