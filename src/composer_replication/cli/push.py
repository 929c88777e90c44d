"""`recompose push`: an exported student, or sessions written as Parquet, to a hub."""

from __future__ import annotations

import os
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from composer_replication.cli.export import FACTS
from composer_replication.cli.flags import Common
from composer_replication.cli.job import open_job
from composer_replication.core.errors import ConfigError, DataError, first_line, need
from composer_replication.core.redact import find_secrets
from composer_replication.report.html import plural

CARD = "README.md"
MODEL_FILES = (
    CARD,
    FACTS,
    "*config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)
DATA_FILES = (CARD, "data/*.parquet")
WORDS = (".json", ".md", ".txt", ".jinja")
"""Files that are searched for secrets; those of a tokenizer are left out: its vocabulary is no log,
and every string of it would have to be looked at."""
VOCABULARY = ("tokenizer.json", "vocab.json", "merges.txt", "added_tokens.json")


def push_command(
    folder: Path,
    /,
    *,
    to: str,
    public: bool = False,
    message: str = "",
    common: Common = Common(),
) -> int:
    """Send an exported folder to a model hub, or a folder of --form parquet as a data set. Nothing
    else of this machine is sent.

    Parameters
    ----------
    folder
        Folder written by `recompose export` or `recompose sessions --write --form parquet`.
    to
        Target repository, OWNER/NAME. Created if it does not exist.
    public
        Create the repository as public instead of private. An existing one is not changed.
    message
        Commit message.
    """
    job = open_job(common)
    kind = repository_kind(folder)
    files = sendable(folder, allowed=MODEL_FILES if kind == "model" else DATA_FILES)
    check_words(folder, files)
    if to.count("/") != 1 or not all(to.split("/")):
        raise ConfigError("not a repository's name", where=f"--to {to}", fix="--to OWNER/NAME")
    hub = need("huggingface_hub", extra="hub")
    endpoint = str(need("huggingface_hub.constants", extra="hub").ENDPOINT)
    size = sum((folder / name).stat().st_size for name in files)
    sizes = [(name, f"{(folder / name).stat().st_size:,}") for name in files]
    job.screen.table(sizes, head=("file", "bytes"))
    job.screen.line(
        f" to       {endpoint}/{'' if kind == 'model' else 'datasets/'}{to}   ({kind},"
        f" {plural(len(files), 'file')}, {size / 1e6:.1f} MB)"
    )
    sent: dict[str, Any] = {"endpoint": endpoint, "to": to, "kind": kind, "files": files}
    if job.dry_run:
        return job.finish({**sent, "url": None}, wrote=[])
    url, private = _upload(hub, folder, files, to=to, kind=kind, public=public, message=message)
    job.screen.line(f" sent     {url}   ({'private' if private else 'PUBLIC'})")
    return job.finish({**sent, "url": url, "private": private}, wrote=[])


def repository_kind(folder: Path) -> str:
    """ "model" for an exported student, "dataset" for sessions written as Parquet."""
    if (folder / FACTS).is_file() and (folder / CARD).is_file():
        return "model"
    if (folder / CARD).is_file() and any((folder / "data").glob("*.parquet")):
        return "dataset"
    raise DataError(
        "neither an exported student nor sessions written as Parquet",
        where=str(folder),
        fix="recompose export RUN --to FOLDER, or recompose sessions --write FOLDER --form parquet",
    )


def sendable(folder: Path, *, allowed: tuple[str, ...]) -> list[str]:
    """The files of a folder, sorted; raises DataError for a link and for a file that no export
    writes, so that nothing leaves by accident."""
    names: list[str] = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            raise DataError("a link is not sent", where=name, fix="put the file itself there")
        if path.is_dir():
            continue
        if not any(fnmatch(name, pattern) for pattern in allowed):
            raise DataError(
                "no export writes this file, so it is not sent",
                where=name,
                fix=f"move it out of {folder}, and push again",
            )
        names.append(name)
    return names


def check_words(folder: Path, files: list[str]) -> None:
    """Raise DataError if a text file holds what looks like a secret."""
    for name in files:
        if name in VOCABULARY or not name.endswith(WORDS):
            continue
        if found := find_secrets((folder / name).read_text("utf-8")):
            raise DataError(
                f"{len(found)} secrets of the kind {found[0].kind} would leave",
                where=name,
                fix="take them out of the file; where do they come from?",
            )


def _upload(
    hub: Any, folder: Path, files: list[str], *, to: str, kind: str, public: bool, message: str
) -> tuple[str, bool]:
    """(address, is private) of what was sent; raises ConfigError with what the hub said."""
    constants, errors = (
        need(f"huggingface_hub.{name}", extra="hub") for name in ("constants", "errors")
    )
    if constants.HF_HUB_OFFLINE:
        raise ConfigError(
            "HF_HUB_OFFLINE is set: nothing can be sent",
            where="--to",
            fix="unset HF_HUB_OFFLINE for this command",
        )
    api = hub.HfApi(library_name="composer-replication")
    transport = need("httpx2", extra="hub").HTTPError  # of a hub that is not there
    try:
        api.create_repo(to, repo_type=kind, private=not public, exist_ok=True)
        private = bool(api.repo_info(to, repo_type=kind).private)
        api.upload_folder(
            repo_id=to,
            repo_type=kind,
            folder_path=str(folder),
            allow_patterns=files,
            commit_message=message or "recompose push",
        )
    except (errors.HfHubHTTPError, errors.LocalTokenNotFoundError) as error:
        raise ConfigError(
            f"the hub refused: {first_line(error)}",
            where=f"--to {to}",
            fix="log in with `hf auth login` (or set HF_TOKEN to a token that may write), and check"
            " the owner's name",
        ) from error
    except (OSError, transport) as error:
        raise ConfigError(
            f"the hub cannot be reached: {first_line(error)}",
            where=os.environ.get("HF_ENDPOINT", "--to"),
            fix="try again; a push that was cut off leaves no half commit",
        ) from error
    return f"{constants.ENDPOINT}/{'' if kind == 'model' else 'datasets/'}{to}", private
