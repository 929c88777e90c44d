"""Start replicas and collect their results (docs/executors.md).

jobs.py (the protocol) · done_marker.py (a replica's own word that it finished) · replica_group.py
(retries, collect) · local_jobs.py, and one *_jobs.py per provider.
"""
