"""One replica under torchft: `replica_child.py SETTINGS ROUNDS SHIFT URL`, a line per round."""

from __future__ import annotations

import json
import sys
import time

import torch

from composer_replication.core.errors import ComposerError
from composer_replication.training.diloco.blob_store import open_store
from composer_replication.training.diloco.flat_weights import vector_sha256
from composer_replication.training.diloco.polling import Timing
from composer_replication.training.diloco.torchft import (
    StoreDiLoCo,
    TorchFTDiLoCo,
    TorchFTSettings,
)
from tests.training.diloco.toy_replicas import INNER_STEPS, ToyModel


def run(settings: TorchFTSettings, rounds: int, start: float, url: str) -> None:
    torch.set_num_threads(1)
    toy = ToyModel(settings.slot)
    with torch.no_grad():
        for p in toy.net.parameters():
            p.add_(start)
    timing = Timing(grace_s=3.0, stall_s=60.0, poll_s=0.01, max_poll_s=0.1)
    wrapped: TorchFTDiLoCo | StoreDiLoCo
    if url:
        wrapped = StoreDiLoCo(
            toy.net,
            toy.adam,
            settings=settings,
            store=open_store(url),
            replicas=3,
            takeover=True,
            timing=timing,
        )
    else:
        wrapped = TorchFTDiLoCo(toy.net, toy.adam, settings=settings)
    with wrapped as diloco:
        failed = 0
        while diloco.round < rounds:
            before = diloco.round
            toy.train(INNER_STEPS)
            failed += diloco.round == before
            line = {"round": diloco.round, "n": diloco.num_participants, "failed": failed}
            print(json.dumps({**line, "sha256": vector_sha256(toy.flat.read())}), flush=True)
            time.sleep(0.02)


if __name__ == "__main__":
    try:
        run(
            TorchFTSettings(**json.loads(sys.argv[1])),
            int(sys.argv[2]),
            float(sys.argv[3]),
            sys.argv[4],
        )
    except ComposerError as error:
        print(json.dumps({"refused": f"{type(error).__name__}: {error}"}), flush=True)
        sys.exit(17)
