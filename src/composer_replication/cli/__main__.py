"""`python -m composer_replication.cli` is the `recompose` command."""

from composer_replication.cli.main import main

if __name__ == "__main__":
    main()
