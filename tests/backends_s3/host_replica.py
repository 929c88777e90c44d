"""A replica of the toy on a host of its own: prints a JSON line after each round.

python -m tests.backends_s3.host_replica '{"url": "s3://replicas/x", "slot": 0, "rounds": 4, ...}'
"""

from __future__ import annotations

import json
import sys
import time

import torch

from composer_replication.training.diloco.blob_store import open_store
from composer_replication.training.diloco.polling import Timing
from tests.training.diloco.toy_replicas import join_toy, toy_spec, train_toy


def main() -> None:
    """Train and meet until the last round."""
    torch.set_num_threads(1)
    given = json.loads(sys.argv[1])
    timing = Timing(stall_s=120.0, poll_s=0.02, max_poll_s=0.5, grace_s=given["grace_s"])
    spec = toy_spec(**given["spec"])
    model, replica = join_toy(open_store(given["url"]), given["slot"], spec, timing=timing)
    print(json.dumps({"joined": given["slot"]}), flush=True)
    while replica.exchange.round < given["rounds"]:
        time.sleep(given["pause_s"])
        (result,) = train_toy(model, replica, until=replica.exchange.round + 1)
        report = {
            "round": result.round,
            "hash": result.theta_sha256,
            "mine": result.contributed,
            "missed": result.missed,
            "slots": result.commits[0].slots,
            "seconds": result.seconds,
        }
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
