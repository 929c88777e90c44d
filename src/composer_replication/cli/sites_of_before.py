"""The sites of the last call that still hold: of the same code, settings and sessions."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from composer_replication.cli.job import Job
from composer_replication.core.code_hash import hash_of_code
from composer_replication.core.codec import read_sites
from composer_replication.core.errors import DataError
from composer_replication.core.rundir import sha256_of
from composer_replication.core.site import Site
from composer_replication.core.stamps import read_stamp
from composer_replication.data.sites.find_sites import DETECTORS


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierSites:
    """The sites of each session, and the hashes of the sessions that they were found in."""

    sites: Mapping[str, Sequence[Site]] = field(default_factory=dict)
    hashes: frozenset[str] = frozenset()


def found_by(job: Job, path: Path, hashes: Iterable[str]) -> dict[str, object]:
    """What the stamp of sites.jsonl says beyond the files: code and settings, hashes of sessions
    and of the file."""
    return {"found_by": _key(job), "sessions": list(hashes), "sha256": sha256_of(path)}


def sites_of_before(job: Job) -> EarlierSites:
    """The sites that still hold; none if the code or a setting changed, with code or a model of the
    user's, and if somebody else wrote the file."""
    stamp = read_stamp(job.sites)
    if (
        not _are_built_in(job)
        or stamp.get("found_by") != _key(job)
        or not job.sites.exists()
        or stamp.get("sha256") != sha256_of(job.sites)
    ):
        return EarlierSites()
    sites: dict[str, list[Site]] = defaultdict(list)
    try:
        for site in read_sites(job.sites):
            sites[site.session_id].append(site)
    except DataError:
        return EarlierSites()
    return EarlierSites(sites=sites, hashes=frozenset(stamp.get("sessions", ())))


def sites_hold(job: Job) -> bool:
    """Whether sites.jsonl can be used as it is: of these sessions, and either the user's own or
    found by this code with these settings."""
    if not job.is_usable(job.sites):
        return False
    stamp = read_stamp(job.sites)
    return not stamp or stamp.get("found_by") == _key(job)


def _are_built_in(job: Job) -> bool:
    settings = job.config.sites
    users_code = [name for name in settings.detectors if name not in DETECTORS]
    return not users_code and not settings.error_kind and not settings.reader.is_set


def _key(job: Job) -> str:
    facts = (
        hash_of_code("core", "data/sites", "data/ingestion"),
        job.config.sites.model_dump_json(),
    )
    return hashlib.sha256(json.dumps(facts).encode("utf-8")).hexdigest()
