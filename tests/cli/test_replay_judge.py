"""`recompose replay` with a judge, and with the curation recipe at work on the answers, against a
real HTTP server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from composer_replication.core.codec import read_answers, read_preferences
from tests.cli.paid import KEY, prepare, with_the_key
from tests.cli.workspace import files, recompose
from tests.data.teachers.endpoint import Endpoint

LOOSE = {"tiers": '["exact", "judge"]', "judge": '"yew"', "need_evidence": "false"}


@pytest.fixture
def keyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANTED_ROUTER_KEY", KEY)


def folder(tmp_path: Path, url: str, *, family: str = "yew", **settings: Any) -> Path:
    """A work folder with three teachers and a judge."""
    work = prepare(tmp_path, url, sessions=2, steps=2, **{**LOOSE, **settings})
    file = tmp_path / "recompose.toml"
    about = (
        f'model = "yew-1"\nfamily = "{family}"\nbase_url = "{url}"\nkey_env = "PLANTED_ROUTER_KEY"'
    )
    file.write_text(
        f"{file.read_text()}[replay.teacher.yew]\n{about}\nmax_input_usd_per_mtok ="
        " 1.0\nmax_output_usd_per_mtok = 4.0\n"
    )
    return work


def act(body: dict[str, Any]) -> Any:
    """Every teacher answers the same in different words; the judge calls two messages the same if
    they begin with the same word."""
    if body["model"] != "yew-1":
        return f"Look at it, says {body['model']}."
    message_a, message_b = (
        part.split()[0]
        for part in body["messages"][-1]["content"].partition("Message A:")[2].split("Message B:")
    )
    return json.dumps({"same": message_a == message_b})


def test_a_judge_of_the_settings_makes_pairs_and_is_paid_through_the_ledger(
    tmp_path: Path, keyed: None
) -> None:
    with Endpoint(act=act) as endpoint:
        work = folder(tmp_path, endpoint.url)
        before = files(tmp_path)
        bill = recompose("replay", "--estimate", "--json", cwd=tmp_path).value
        assert not endpoint.seen and files(tmp_path) == before
        assert {name: teacher["calls"] for name, teacher in bill["teachers"].items()} == {
            "ash": 4,
            "elm": 4,
            "oak": 4,
            "yew": 24,
        }
        value = recompose("replay", "--max-usd", "1", "--json", cwd=tmp_path).value
        pairs = list(read_preferences(work / "preferences.jsonl"))
        assert value["pairs"] == len(pairs) == 4 and {pair.evidence["tier"] for pair in pairs} == {
            "judge"
        }
        asked = [request for request in endpoint.seen if request.model == "yew-1"]
        assert len(asked) == value["judge"]["bought"] == 20 <= bill["teachers"]["yew"]["calls"]
        billed = sum(request.usd for request in asked)
        assert billed <= value["judge"]["usd"] < 6 * billed, "our own count, at full prices"
        assert (
            endpoint.billed_usd <= value["usd"] < 6 * endpoint.billed_usd
            and value["usd"] < bill["most_usd"]
        )
        assert pairs[0].evidence["judge"] == "yew" and pairs[0].evidence["usd"]["yew"] > 0
        text = recompose("replay", "--max-usd", "1", cwd=tmp_path).out
        assert "judge yew: different 12, kept 20, same 8" in text and len(endpoint.seen) == 32, (
            "a second run costs nothing"
        )
        assert not with_the_key(tmp_path)


def test_the_judges_questions_stop_at_the_ceiling_with_code_4(tmp_path: Path, keyed: None) -> None:
    with Endpoint(act=act) as endpoint:
        work = folder(tmp_path, endpoint.url)
        assert (
            recompose(
                "replay",
                "--max-usd",
                "1",
                "--replay.tiers",
                '["exact"]',
                "--replay.judge",
                "",
                cwd=tmp_path,
            ).code
            == 0
        )
        before = len(endpoint.seen)
        result = recompose("replay", "--max-usd", "0.007", "--json", cwd=tmp_path)
        assert (
            result.code == 4
            and "ceiling" in result.value["stopped"]["what"]
            and before <= len(endpoint.seen) < before + 20
        )
        assert (
            endpoint.billed_usd <= 0.007 and len(list(read_answers(work / "answers.jsonl"))) == 12
        )
        assert recompose("replay", "--max-usd", "1", "--json", cwd=tmp_path).value["pairs"] == 4
        assert len(endpoint.seen) == before + 20, "what the judge had said was asked again"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"judge": '"nobody"'}, "no teacher 'nobody'"),
        ({"family": "oak"}, "of the family of teacher 'oak'"),
        ({"judge": '"ash"'}, "cannot judge its own answers"),
        ({"judge": '""'}, "needs both"),
        ({"tiers": '["exact"]'}, "needs both"),
        ({"tiers": '["judge", "exact"]'}, "comes last"),
    ],
)
def test_a_judge_that_cannot_judge_is_refused_before_anything_is_sent(
    tmp_path: Path, keyed: None, settings: dict[str, str], message: str
) -> None:
    with Endpoint(act=act) as endpoint:
        folder(tmp_path, endpoint.url, **settings)
        for argv in (["--max-usd", "1"], ["--estimate"]):
            result = recompose("replay", *argv, cwd=tmp_path)
            assert (
                result.code == 1 and message in " ".join(result.err.split()) and not endpoint.seen
            )


def test_answers_that_the_recipe_refuses_do_not_vote_and_say_why(
    tmp_path: Path, keyed: None
) -> None:
    """A path that is a number: the call came whole and names a tool on offer, but the tool would
    not take it."""
    with Endpoint(
        act=lambda body: ("read", {"path": 7 if "ash" in body["model"] else "b.py"})
    ) as endpoint:
        work = prepare(
            tmp_path, endpoint.url, sessions=1, steps=2, need_evidence="false", min_families=2
        )
        value = recompose("replay", "--max-usd", "1", "--json", cwd=tmp_path).value
        assert (
            value["asking"] == {"bought": 6, "problem: curate: tool_arguments_filter": 2}
            and value["pairs"] == 2
        )
        problems = [
            answer.problem
            for answer in read_answers(work / "answers.jsonl")
            if answer.teacher == "ash"
        ]
        assert len(problems) == 2 and all(
            problem.startswith("curate: tool_arguments_filter: read: ") for problem in problems
        )
        recipe = tmp_path / "mild.yaml"
        recipe.write_text("process:\n  - answer_not_empty_filter\n")
        again = recompose(
            "replay", "--max-usd", "1", "--curate.recipe", str(recipe), "--json", cwd=tmp_path
        ).value
        assert again["asking"] == {"kept": 6} and len(endpoint.seen) == 6
        (tmp_path / "answers.jsonl").write_bytes((work / "answers.jsonl").read_bytes())
        recorded = recompose(
            "replay", "--replay.recorded", "answers.jsonl", "--json", cwd=tmp_path
        ).value
        assert recorded["asking"] == {"bought": 6, "problem: curate: tool_arguments_filter": 2}
        result = recompose(
            "replay", "--max-usd", "1", "--resume", "--curate.recipe", str(recipe), cwd=tmp_path
        )
        assert result.code == 1 and "not the replay that was begun" in result.err
