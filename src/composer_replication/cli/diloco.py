"""`recompose diloco simulate`: what syncs through a bucket cost a run of many replicas."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from composer_replication.cli.flags import Common
from composer_replication.cli.job import settings_only
from composer_replication.core.errors import ConfigError, need

if TYPE_CHECKING:
    from composer_replication.training.diloco.simulate import Scenario

HEAD = ("replicas", "way", "lost to sync", "s/round", "GB up", "GB down", "requests", "$/round")
_GBIT = 125e6


def diloco_command(
    what: Literal["simulate"],
    /,
    *,
    replicas: tuple[int, ...] = (8, 32, 128, 1024),
    trained: float = 80.7e6,
    codec: str = "int8",
    gather: str = "",
    fanout: int = 4,
    inner_steps: int = 20,
    step_s: float = 30.0,
    rounds: int = 5,
    gbit: float = 1.0,
    latency_ms: float = 30.0,
    failure: float = 0.001,
    stragglers: float = 0.0,
    deaths_per_hour: Annotated[float, Parameter(name="--deaths-per-hour")] = 0.0,
    leaves_per_hour: float = 0.0,
    joins_per_hour: float = 0.0,
    egress: float = 0.09,
    seed: int = 0,
    common: Common = Common(),
) -> int:
    """Time, bytes, requests and dollars of a run of many replicas, simulated: the same exchange as
    in `train`, with a clock and a store that are not real.

    Beside it, by arithmetic over the same links: data-parallel training (a ring all-reduce a step)
    and torchft's DiLoCo (one a round); and PULSELoCo's sparse updates, simulated.

    Parameters
    ----------
    what
        `simulate`.
    replicas
        Number of replicas. Repeatable. 1,024 take a minute or less, except with --gather peer or
        publisher, whose simulation time grows quadratically.
    trained
        Number of trained weights, e.g. 80.7e6 for rank 32 on a 7B model.
    codec
        none, bf16, int8, int4, topk or visible.
    gather
        peer, publisher or tree; "" = peer up to eight replicas, then tree.
    fanout
        Pseudo-gradients or sums added up at each node of the tree.
    inner_steps
        Optimiser steps between syncs.
    step_s
        Seconds per step.
    rounds
        Rounds to simulate.
    gbit
        Bandwidth between a replica and the store, in Gbit/s.
    latency_ms
        Median latency of a request, in ms.
    failure
        Share of requests that fail and are retried.
    stragglers
        Share of rounds in which a replica takes twice as long.
    deaths_per_hour
        Deaths per replica and hour. Another replica takes the slot a minute later.
    leaves_per_hour
        Permanent leaves per replica and hour, as long as a quorum (half of them) stays.
    joins_per_hour
        New replicas that join the run per hour.
    egress
        USD per GB of egress from the store.
    seed
        Random seed of latencies, failures, deaths, leaves and joins.
    """
    job = settings_only(common)
    need("torch", extra="diloco")
    from composer_replication.training.diloco.simulate import Prices, Scenario
    from composer_replication.training.diloco.simulated_world import Link

    if not replicas or min(replicas) < 2:
        raise ConfigError(f"--replicas {replicas}", fix="give numbers from 2 on")
    if gather not in ("", "peer", "publisher", "tree") or fanout < 2:
        problem = f"--gather {gather} --fanout {fanout}"
        raise ConfigError(problem, fix="use peer, publisher or tree, and a fanout from 2 on")
    speed = gbit * _GBIT
    link = Link(latency_s=latency_ms / 1000, up_bytes_s=speed, down_bytes_s=speed, failure=failure)
    scenario = Scenario(
        trained=trained,
        codec=codec,
        gather=gather,
        fanout=fanout,
        inner_steps=inner_steps,
        step_s=step_s,
        rounds=rounds,
        stragglers=stragglers,
        deaths_per_hour=deaths_per_hour,
        leaves_per_hour=leaves_per_hour,
        joins_per_hour=joins_per_hour,
        link=link,
        prices=Prices(egress_gb=egress),
        seed=seed,
    )
    rows = [row for n in replicas for row in rows_of(replace(scenario, replicas=n))]
    job.screen.table([_shown(row) for row in rows], head=HEAD)
    return job.finish({"rows": rows}, wrote=[], next_command="")


def rows_of(scenario: Scenario) -> list[dict[str, Any]]:
    """The ways to train on as many replicas, one row each."""
    from composer_replication.training.diloco.simulate import ring, simulate

    ours = {"way": f"over a store, {scenario.codec}", **asdict(simulate(scenario))}
    sparse = simulate(replace(scenario, codec="visible"))
    rows = [ours, {"way": "over a store, PULSELoCo", **asdict(sparse)}]
    for way, syncs in (("torchft DiLoCo", 1), ("data-parallel", scenario.inner_steps)):
        found = ring(scenario, syncs=syncs)
        same = {"bytes_down": found.bytes_up, "replicas": scenario.replicas}
        rows.append({"way": way, **asdict(found), **same})
    return rows


def _shown(row: dict[str, Any]) -> tuple[Any, ...]:
    requests = sum(row.get(name, 0.0) for name in ("puts", "gets", "lists"))
    return (
        row["replicas"],
        row["way"],
        f"{row['sync_share']:.1%}",
        f"{row['sync_s']:.1f}",
        f"{row['bytes_up'] / 1e9:.2f}",
        f"{row['bytes_down'] / 1e9:.2f}",
        f"{requests:.0f}" if requests else "-",
        f"{row['dollars']:.3f}",
    )
