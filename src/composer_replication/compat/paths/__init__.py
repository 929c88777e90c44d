"""On the search path of `composer_replication` (its __init__), so that
`composer_replication.trainer` is found here."""
