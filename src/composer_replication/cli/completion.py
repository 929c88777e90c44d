"""`recompose completion`: the script with which a shell completes verbs and flags."""

from __future__ import annotations

import sys
from typing import Literal

from composer_replication.cli.flags import Common
from composer_replication.cli.problems import DONE

Shell = Literal["bash", "zsh", "fish", "powershell"]
PLACES: dict[str, str] = {
    "bash": "recompose completion bash > ~/.local/share/bash-completion/completions/recompose",
    "zsh": "recompose completion zsh > ~/.zfunc/_recompose   (with ~/.zfunc in $fpath)",
    "fish": "recompose completion fish > ~/.config/fish/completions/recompose.fish",
    "powershell": "recompose completion powershell >> $PROFILE",
}


def completion_command(shell: Shell = "bash", *, common: Common = Common()) -> int:
    """Print the script with which a shell completes commands and flags; nothing is written.

    Parameters
    ----------
    shell
        bash, zsh, fish or powershell.
    """
    from composer_replication.cli.console import Screen
    from composer_replication.cli.main import build_app

    script = build_app().generate_completion(prog_name="recompose", shell=shell)
    if common.json:
        Screen(json=True).result({"shell": shell, "script": script, "install": PLACES[shell]})
        return DONE
    sys.stdout.write(script)
    if not common.quiet:
        sys.stderr.write(f"# to install: {PLACES[shell]}\n")
    return DONE
