"""On-policy data from logs: the student rewrites the mistaken message of an imported session.

    prefix = restore(session, turn=site.turn, renderer=renderer, max_tokens=4096, room=256)
    point = ForkPoint(site=site, turns=prefix.turns, tools=session.tools,
                      check=SiteCheck.of(session, site))
    forks = sample_forks(model, [point], samples=4, renderer=renderer, settings=Sampling(),
                         author="student")
    forks[0].checked.outcome, forks[0].ids      # "same", the ids that were sampled

The message is checked without a sandbox. The student reads the messages above the mistaken one and
nothing else: neither that message nor what came of it. A fork is an episode of one message
(rollouts/sampler.py), so its ids and log-probs are those that were sampled; nothing is encoded
again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from composer_replication.core.errors import AlignmentError, DataError
from composer_replication.core.site import Site
from composer_replication.core.trace import ToolSpec, Turn
from composer_replication.rollouts.envs.env import Opening, Reply, RunsIn
from composer_replication.rollouts.episode import LOST, Rollout
from composer_replication.rollouts.parse import Parser
from composer_replication.rollouts.sampler import Sampling, sample_rollouts
from composer_replication.rollouts.sampling_stats import SamplingStats
from composer_replication.rollouts.static_check import OUTCOMES, Checked, SiteCheck
from composer_replication.tokens.renderer import Renderer


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkPoint:
    """A place to fork: the messages above the mistaken one, the tools on offer, and the check.

    `ids` are what `build` made of these messages, up to and including the generation prompt; empty
    if nothing was built, and then `num_tokens` says how many they will be. `others` check for the
    mistakes of further calls of the same message.
    """

    site: Site
    turns: tuple[Turn, ...]
    tools: tuple[ToolSpec, ...]
    check: SiteCheck
    ids: tuple[int, ...] = ()
    num_tokens: int = 0
    others: tuple[SiteCheck, ...] = ()

    def checked(self, turn: Turn) -> Checked:
        """The verdict on a new message: "same" if any check says so, else the first check's."""
        verdicts = [check.message(turn) for check in (self.check, *self.others)]
        return next((verdict for verdict in verdicts if verdict.outcome == "same"), verdicts[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """One message that the student wrote at a site: its own ids and log-probs, and the verdict.

    `number` counts the samples of the site; `prefix_ids` are what the student read.
    """

    site: Site
    number: int
    prefix_ids: tuple[int, ...]
    turn: Turn
    checked: Checked

    @property
    def ids(self) -> tuple[int, ...]:
        """The sampled ids, including the end token if it was written."""
        return self.turn.sampled.ids if self.turn.sampled is not None else ()

    @property
    def logprobs(self) -> tuple[float, ...]:
        """The model's own log-prob of each id."""
        return self.turn.sampled.logprobs if self.turn.sampled is not None else ()


class _OneMessage:
    """An environment that takes one message and ends.

    Every method returns at once, so it needs no thread.
    """

    max_turns = 1
    runs_in: RunsIn = "caller"

    def __init__(self, point: ForkPoint) -> None:
        self.task_id, self.fork_point = point.site.id, point

    def open(self) -> Opening:
        return Opening(turns=self.fork_point.turns, tools=self.fork_point.tools, logged=True)

    def reply(self, turn: Turn) -> Reply:
        return Reply(turns=(), done=True)

    def reward(self) -> float:
        return 0.0

    def measures(self) -> Mapping[str, float]:
        return {}

    def close(self) -> None:
        """Nothing to free."""


def sample_forks(
    model: Any,
    points: Sequence[ForkPoint],
    *,
    samples: int,
    renderer: Renderer,
    settings: Sampling,
    author: str,
    label: str = "fork:",
    parser: Parser | None = None,
    stats: SamplingStats | None = None,
) -> list[Fork]:
    """`samples` messages at each fork point, in the order of the points.

    Each draws from its own stream, named by label, site and number. `settings.max_context_tokens`
    must leave room above the longest prefix (ConfigError otherwise). Raises AlignmentError if a
    prefix is not what `build` made of it: the examples were built from other sessions.
    """
    repeated = [point for point in points for _ in range(samples)]
    options = {
        "renderer": renderer,
        "settings": settings,
        "author": author,
        "label": label,
        "parser": parser,
        "stats": stats,
    }
    rollouts = sample_rollouts(model, [_OneMessage(point) for point in repeated], **options)
    return [
        _fork(point, rollout, number=i % samples)
        for i, (point, rollout) in enumerate(zip(repeated, rollouts, strict=True))
    ]


def _fork(point: ForkPoint, rollout: Rollout, *, number: int) -> Fork:
    if rollout.ended in LOST:
        raise DataError(
            f"no episode could begin there: {rollout.failure}",
            where=point.site.id,
            fix="report it as a bug",
        )
    turn = rollout.session.turns[len(point.turns)]
    ids = turn.sampled.ids if turn.sampled is not None else ()
    prefix = rollout.ids[: len(rollout.ids) - len(ids)]
    if point.ids and prefix != point.ids:
        raise AlignmentError(
            f"the restored context has {len(prefix)} tokens that are not the {len(point.ids)} of"
            " the example",
            where=point.site.id,
            fix="the sessions changed since the examples were built: run recompose build again",
        )
    if not ids or rollout.ids[len(prefix) :] != ids:
        raise AlignmentError(
            "what follows the context is not what was sampled", where=point.site.id
        )
    return Fork(
        site=point.site, number=number, prefix_ids=prefix, turn=turn, checked=point.checked(turn)
    )


def room_for(lengths: Sequence[int], *, settings: Sampling) -> Sampling:
    """The settings with enough context for the longest prefix and one whole message.

    Example: a prefix of 900 tokens and max_new_tokens=64 give max_context_tokens=964.
    """
    return replace(settings, max_context_tokens=max(lengths, default=1) + settings.max_new_tokens)


def outcome_counts(forks: Sequence[Fork]) -> dict[str, int]:
    """The number of samples per outcome, with every outcome present.

    Example: {"ok": 3, "same": 1, "other": 0, "malformed": 0, "undecided": 4}
    """
    counts = Counter(fork.checked.outcome for fork in forks)
    return {outcome: counts[outcome] for outcome in OUTCOMES}


def fork_to_json(fork: Fork) -> dict[str, Any]:
    """One line of a record: the site, the verdict, and how much was written.

    Its only prose is the verdict's.
    """
    return {
        "site_id": fork.site.id,
        "session_id": fork.site.session_id,
        "kind": fork.site.kind,
        "number": fork.number,
        "origin": "student",
        "outcome": fork.checked.outcome,
        "reason": fork.checked.reason,
        "detail": fork.checked.detail,
        "tools": [call.name for call in fork.turn.calls],
        "prefix_tokens": len(fork.prefix_ids),
        "tokens": len(fork.ids),
    }
