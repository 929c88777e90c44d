"""What `build` proposes where a split holds nothing out."""

from __future__ import annotations

from composer_replication.cli.build_split import MOST_HELD_OUT, _other_split
from composer_replication.core.config.data_settings import HeldOutSettings
from composer_replication.tokens.split import possible_fractions


def test_a_split_that_keeps_next_to_nothing_is_not_the_first_remedy() -> None:
    settings = HeldOutSettings(by="repository", fraction=0.01)
    firsts: dict[bool, set[str]] = {True: set(), False: set()}
    for number in range(40):
        units = [f"acme/{number}", f"acme/{number + 100}"]
        smallest = next(iter(possible_fractions(units)), None)
        if smallest is not None:
            first = _other_split(units, settings).split(" or ")[0]
            firsts[smallest > MOST_HELD_OUT].add(first.split(" = ")[0])
    assert firsts == {True: {"set held_out.by"}, False: {"set held_out.fraction"}}
