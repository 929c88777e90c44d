"""`recompose push` sends an export's files and nothing else, to a hub on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from composer_replication.core.jsonl import write_json
from tests.cli.hub_server import TOKEN, Hub, hub_server
from tests.cli.test_ingest import MADE_UP_KEY

pytestmark = pytest.mark.train  # huggingface_hub comes with transformers


@pytest.fixture
def hub() -> Iterator[Hub]:
    with hub_server() as server:
        yield server


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """A folder like an export's."""
    folder = tmp_path / "export"
    folder.mkdir()
    (folder / "README.md").write_text("# main\n\nNo evaluation was run.\n", "utf-8")
    write_json(folder / "recompose.json", {"schema": 1, "run": "main"})
    write_json(folder / "config.json", {"model_type": "qwen3"})
    write_json(folder / "tokenizer.json", {"model": {"vocab": {f"t{n}": n for n in range(9)}}})
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 40)
    return folder


def push(folder: Path, *more: str, hub: Hub, token: str = TOKEN) -> tuple[int, str, str]:
    """Exit code, stdout and stderr, in a process of its own: the library reads the environment when
    it is imported."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
    environment |= {"HF_ENDPOINT": hub.url, "HF_TOKEN": token, "HF_HOME": str(folder.parent / "hf")}
    command = [sys.executable, "-m", "composer_replication.cli", "push", str(folder), *more]
    done = subprocess.run(
        command, cwd=folder.parent, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, " ".join(done.stderr.replace("│", " ").split())


def content(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_an_export_is_sent_whole_and_private(export: Path, hub: Hub) -> None:
    code, out, err = push(export, "--to", "me/agent", "--json", hub=hub)
    assert code == 0, err
    assert hub.files == content(export) and hub.messages == ["recompose push"]
    assert hub.private == {("model", "me/agent"): True}
    assert json.loads(out)["private"] is True and json.loads(out)["url"] == f"{hub.url}/me/agent"


def test_a_data_set_is_a_data_set_and_public_only_if_asked(tmp_path: Path, hub: Hub) -> None:
    folder = tmp_path / "set"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "train.parquet").write_bytes(b"PAR1" * 9)
    (folder / "README.md").write_text("# Messages\n", "utf-8")
    code, out, err = push(folder, "--to", "me/logs", "--public", hub=hub)
    assert code == 0 and "PUBLIC" in out, err
    assert hub.private == {("dataset", "me/logs"): False} and hub.files == content(folder)


def test_a_dry_run_says_what_and_where_and_sends_nothing(export: Path, hub: Hub) -> None:
    code, out, err = push(export, "--to", "me/agent", "--dry-run", hub=hub)
    assert code == 0, err
    assert hub.url in out and "model.safetensors" in out
    assert not hub.private and not hub.files


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (".env", "A=1", "no export writes this file"),
        ("optimizer.pt", "x", "no export writes this file"),
        ("sub/config.json.bak", "x", "no export writes this file"),
        ("README.md", f"# main\nexport API_KEY={MADE_UP_KEY}\n", "would leave"),
        ("recompose.json", json.dumps({"note": f"token {MADE_UP_KEY}"}), "would leave"),
        ("chat_template.jinja", f"{{# API_KEY={MADE_UP_KEY} #}}", "would leave"),
    ],
)
def test_what_no_export_writes_and_secrets_stay_here(
    export: Path, hub: Hub, name: str, text: str, said: str
) -> None:
    (export / name).parent.mkdir(exist_ok=True)
    (export / name).write_text(text, "utf-8")
    code, _, err = push(export, "--to", "me/agent", hub=hub)
    assert code == 1 and said in err and MADE_UP_KEY not in err
    assert not hub.private and not hub.files


def test_a_link_is_not_followed(export: Path, hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "private.json").write_text("{}", "utf-8")
    (export / "extra_config.json").symlink_to(tmp_path / "private.json")
    code, _, err = push(export, "--to", "me/agent", hub=hub)
    assert code == 1 and "a link is not sent" in err and not hub.files


@pytest.mark.parametrize(
    ("token", "fail", "said"),
    [("wrong", 0, "hf auth login"), (TOKEN, 403, "the hub refused")],
)
def test_a_hub_that_refuses_is_an_error_with_a_remedy(
    export: Path, hub: Hub, token: str, fail: int, said: str
) -> None:
    hub.fail = fail
    code, _, err = push(export, "--to", "me/agent", hub=hub, token=token)
    assert code == 1 and said in err and "Traceback" not in err and not hub.files


def test_a_hub_that_is_not_there_and_a_name_that_is_none(export: Path) -> None:
    code, _, err = push(export, "--to", "me/agent", hub=Hub(url="http://127.0.0.1:9"))
    assert code == 1 and "cannot be reached" in err
    code, _, err = push(export, "--to", "agent", hub=Hub(url="http://127.0.0.1:9"))
    assert code == 1 and "OWNER/NAME" in err
    code, _, err = push(export.parent, "--to", "me/agent", hub=Hub(url="http://127.0.0.1:9"))
    assert code == 1 and "recompose export" in err
