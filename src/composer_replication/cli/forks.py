"""The sessions and sites that `train.fork` needs, checked against those that were built from."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from composer_replication.cli.job import Job
from composer_replication.cli.lookup import iter_sessions
from composer_replication.core.codec import read_sites
from composer_replication.core.errors import DataError
from composer_replication.core.rundir import sha256_of
from composer_replication.core.stamps import input_hashes
from composer_replication.core.trace import Session
from composer_replication.tokens.artefact import Dataset

if TYPE_CHECKING:
    from composer_replication.training.draws.forked import ForkSource


def fork_producer(job: Job, data: Dataset, *, tokenizer: Any) -> ForkSource:
    """The producer of `train.fork`; raises DataError if sessions or sites changed since `build`."""
    from composer_replication.tokens.renderer import Renderer
    from composer_replication.training.draws.forked import ForkSource

    job.need_file(job.sessions, verb="ingest")
    job.need_fresh(job.sites, verb="sites")
    check_built_from(job, data)
    views = {
        site_id for example in data.examples for view in example.hints for site_id in view.site_ids
    }
    sites = {site.id: site for site in read_sites(job.sites) if site.id in views}
    return ForkSource(
        config=job.config,
        renderer=Renderer.for_tokenizer(tokenizer, family=job.config.student.template),
        sessions=load_sessions_by_id(job, {site.session_id for site in sites.values()}),
        sites=sites,
    )


def check_built_from(job: Job, data: Dataset) -> None:
    """Raise DataError if the examples were built from other sessions or sites than the current."""
    built = input_hashes(data.meta.get("inputs", ()))
    for path in (job.sessions, job.sites):
        if built.get(path.name, "") != sha256_of(path):
            message = (
                f"the examples were built from another {path.name}: a fork would stand in another"
                " context"
            )
            raise DataError(
                message, where=str(job.examples), fix=f"run again: {job.command('build')}"
            )


def load_sessions_by_id(job: Job, wanted: Collection[str]) -> dict[str, Session]:
    """The sessions with these ids, by id."""
    return {session.id: session for session in iter_sessions(job.sessions, wanted)}
