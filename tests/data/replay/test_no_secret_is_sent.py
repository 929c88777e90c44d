"""The bytes of a prompt to a teacher hold none of the planted secrets, even if the session was not
redacted when it was read."""

from __future__ import annotations

import json
from pathlib import Path

from examples.log_writer import Call

from composer_replication.core.config.rollout_settings import ReplaySettings
from composer_replication.core.config.teacher_settings import TeacherSettings
from composer_replication.core.redact import Redactor
from composer_replication.core.trace import Session
from composer_replication.data.replay.gather import teacher_requests
from composer_replication.data.replay.steps import all_steps
from composer_replication.data.teachers.openai_compatible import OpenAICompatible
from tests.core.planting import Planted, planted
from tests.data.ingestion.reading import new_log, read_log

SECRETS = planted()


def session_of(folder: Path, secrets: list[Planted]) -> Session:
    """Secrets in what the human wrote, what the model wrote, in arguments, in results, and in the
    folder's name."""
    log = new_log()
    for number, planted_secret in enumerate(secrets):
        if number % 4 == 0:
            log.human(planted_secret.text)
        elif number % 4 == 1:
            log.act(planted_secret.text)
        elif number % 4 == 2:
            log.act("", Call("Write", {"file_path": "a", "content": planted_secret.text}, "ok"))
        else:
            log.act("", Call("Bash", {"command": "cat it"}, planted_secret.text))
    log.act("done")
    return read_log(folder, log)


def sent_about(session: Session, redactor: Redactor) -> str:
    """Return the JSON of every request about a session, as one text."""
    teacher = OpenAICompatible(
        "t",
        TeacherSettings(model="acme/m", base_url="http://localhost:1/v1", key_env=""),
        environ={},
    )
    settings = ReplaySettings(max_prompt_tokens=10**6)
    steps = all_steps(session)[-1:]  # the last step's prompt holds all messages before it
    asked = list(teacher_requests(session, steps, settings=settings, redactor=redactor))
    assert len(asked) == 1
    return json.dumps(teacher.body_of(asked[0].request), ensure_ascii=False)


def left_in(sent: str) -> list[str]:
    """Return the kinds of the secrets of which a line is readable in a text."""
    lines = {
        planted_secret: [
            line[2:-2]
            for line in planted_secret.secret.split("\n")
            if len(line) >= 10 and not line.startswith("-----")
        ]
        for planted_secret in SECRETS
    }
    return [
        planted_secret.kind
        for planted_secret, pieces in lines.items()
        if any(piece in sent for piece in pieces)
    ]


def test_planted_secrets_are_not_in_the_bytes_that_are_sent(tmp_path: Path) -> None:
    session = session_of(tmp_path, SECRETS)
    sent = sent_about(session, Redactor(environ={}, key=b"k"))
    assert len(sent) > 50_000
    assert len(left_in(sent)) <= 0.01 * len(SECRETS), left_in(sent)
    assert sent.count("[REDACTED:") >= 0.99 * len(SECRETS)


def test_the_same_store_sends_the_same_bytes_again(tmp_path: Path) -> None:
    """The ledger knows a request by its bytes: with other names in each run every answer would be
    paid for twice."""
    session = session_of(tmp_path, SECRETS[:40])
    assert sent_about(session, Redactor(environ={}, key=b"k")) == sent_about(
        session, Redactor(environ={}, key=b"k")
    )
    assert sent_about(session, Redactor(environ={}, key=b"k")) != sent_about(
        session, Redactor(environ={}, key=b"l")
    )
