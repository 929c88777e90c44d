"""All episodes and messages that a run writes pass redaction first."""

from __future__ import annotations

import json
from pathlib import Path

from composer_replication.core.redact import Redactor
from composer_replication.core.trace import Sampled, Segment, Session, SourceRef, Text, Turn
from composer_replication.data.ingestion.redaction import redact_turn
from composer_replication.training.run.run_logger import RunLogger
from tests.training.small_student import make_config, make_run

SECRET = "gh" + "p_" + "a7Zk" * 9


def episode() -> Session:
    """An episode whose student read a key aloud; its sampled ids spell the key as well."""
    asked = Turn(role="user", author="human", blocks=(Text("go"),))
    reply = Turn(
        role="assistant",
        author="tiny",
        blocks=(Text(f"The key is {SECRET}."),),
        sampled=Sampled((4, 5), (-0.1, -0.2)),
    )
    harmless = Turn(
        role="assistant", author="tiny", blocks=(Text("Done."),), sampled=Sampled((6,), (-0.3,))
    )
    turns = (asked, reply, harmless)
    return Session(
        id="e1",
        source=SourceRef(file=""),
        turns=turns,
        segments=(Segment(start=0, end=3),),
        origin="student",
    )


def test_a_sampled_episode_is_written_without_its_secrets(tmp_path: Path) -> None:
    run = make_run(tmp_path, make_config())
    RunLogger(run=run, main=True).samples(3, [episode()])
    (path,) = [path for _, path in run.samples()]
    assert SECRET not in path.read_text(
        encoding="utf-8"
    ) and "[REDACTED:github_token:" in path.read_text(encoding="utf-8")
    assert not any(
        SECRET.encode() in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()
    )


def test_the_ids_of_what_went_go_too_and_those_of_other_messages_stay() -> None:
    """Anyone with the tokenizer can read a secret from the ids of its message."""
    redactor = Redactor(environ={})
    _, redacted, harmless = (redact_turn(turn, redactor) for turn in episode().turns)
    assert redacted.sampled is None and SECRET not in json.dumps(
        [block.text for block in redacted.blocks if isinstance(block, Text)]
    )
    assert harmless.sampled == Sampled((6,), (-0.3,))
