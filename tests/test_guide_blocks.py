"""Every code block of the earlier guide, as its readers would paste it, with the outcome that
docs/coming_from_the_guide.md records.

The blocks are not ours to publish, so they are not in this repository: the tests read them from the
folder that COMPOSER_REPLICATION_GUIDE_BLOCKS names, or from ../shared/guide_blocks beside the
checkout, and are skipped if there is none. The second half of this file, and the tests that the
page names, check the same functions without the blocks.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict, get_type_hints

import pytest
import torch

import composer_replication
from composer_replication.compat.guide_pairs import NormalizedDPOPair
from composer_replication.compat.guide_replay import TeacherActions
from composer_replication.core.errors import DataError, MissingExtraError
from composer_replication.losses.trust_region import dppo
from composer_replication.training.backends.prime_rl_step import Inputs
from composer_replication.training.backends.registry import TRL
from tests.data.replay.test_guide import STATES, settings
from tests.data.teachers.endpoint import Endpoint
from tests.data.test_guide import _assistant, _call, _result
from tests.executors.hf_jobs_server import HubServer
from tests.training.small_student import small_model
from tests.training.test_compose_loss import batch

pytestmark = pytest.mark.train
VARIABLE = "COMPOSER_REPLICATION_GUIDE_BLOCKS"
ROOT = Path(__file__).resolve().parent.parent
OUTCOMES = ("runs", "runs with TRL", "raises ImportError", "excerpt")
ROW = re.compile(
    r"^\| (?P<number>\d\d) \| (?P<what>[^|]+) \| (?P<outcome>[^|:]+)(?:: [^|]+)? \|"
    r" (?P<tests>[^|]+) \|$",
    re.MULTILINE,
)
NUMBERS = range(1, 17)
BEFORE = {3: (2,), 5: (2, 3), 6: (2,)}
"""The blocks that a reader has run by then."""
READERS_OWN = {
    2: {"[...]": "OWN_STATES"},
    14: {", ...)": ", **MORE)"},
    15: {"model=...": "model=OWN_MODEL", "[...]": "[own_reward]", ", ...)": ", **MORE)"},
}
"""What stands for the dots, which are the reader's own objects."""


def recorded() -> dict[int, re.Match[str]]:
    page = (ROOT / "docs" / "coming_from_the_guide.md").read_text("utf-8")
    return {int(row["number"]): row for row in ROW.finditer(page)}


def folder() -> Path:
    configured = os.environ.get(VARIABLE, "")
    blocks = Path(configured) if configured else ROOT.parent / "shared" / "guide_blocks"
    if not blocks.is_dir():
        if configured:
            pytest.fail(f"{VARIABLE} names {blocks}, which is no folder")
        pytest.skip(
            f"the guide's blocks are not here: set {VARIABLE} to their folder; what they rely on is"
            " tested in this file without them"
        )
    return blocks


def block(number: int) -> str:
    """A block with its indentation restored: what stands behind a header belongs to it, but for an
    import or a comment at the end."""
    (path,) = folder().glob(f"{number:02d}_*.txt")
    lines = [
        line for line in path.read_text("utf-8").splitlines() if not line.startswith("# section:")
    ]
    for n, line in enumerate(lines):
        if re.match(r"(?:for|with|def|class)\b.*:$", line):
            lines = [*lines[: n + 1], *(f"    {inner}" for inner in lines[n + 1 :])]
            break
    text = "\n".join(lines)
    for dots, replacement in READERS_OWN.get(number, {}).items():
        assert dots in text, f"block {number} has no {dots} any more"
        text = text.replace(dots, replacement)
    return text


def run(number: int, names: dict[str, Any]) -> dict[str, Any]:
    """Run a block and those before it, as in a notebook: `await` may occur at the top level."""
    for n in (*BEFORE.get(number, ()), number):
        code = compile(block(n), f"block {n}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if code.co_flags & inspect.CO_COROUTINE:
            asyncio.run(eval(code, names))  # noqa: S307 - running the pasted code is the test
        else:
            exec(code, names)  # noqa: S102 - as above
    return names


@pytest.fixture
def replaying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Three teachers at an endpoint of this machine in place of the default ones, and the reader's
    states."""
    with Endpoint() as endpoint:
        teachers = {name: settings(endpoint.url, f"maker/{name}") for name in ("ash", "elm", "oak")}
        monkeypatch.setattr(composer_replication, "DEFAULT_TEACHERS", teachers)
        monkeypatch.chdir(tmp_path)
        plain = [
            {"state_id": s.state_id, "messages": s.messages, "student_action": s.student_action}
            for s in STATES
        ]
        yield {"OWN_STATES": plain}


def training() -> dict[str, Any]:
    """A model, a batch with everything in it, an optimiser, and the number of steps."""
    model = small_model()
    known = {f"dpo_{side}_ref_logprobs": torch.full((2,), -30.0) for side in ("chosen", "rejected")}
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    defaults = {
        "model": model,
        "batch": {**batch(), **known},
        "optimizer": optimizer,
        "num_train_steps": 3,
    }
    return {**defaults, "compose_loss": composer_replication.compose_loss}


# ---- the page ----


def test_the_page_records_an_outcome_of_every_block_and_the_tests_that_hold_it() -> None:
    rows = recorded()
    assert sorted(rows) == list(NUMBERS)
    for number, row in rows.items():
        assert row["outcome"] in OUTCOMES, f"block {number}: {row['outcome']!r}"
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", row["tests"])
        assert named, f"block {number}: no test is named"
        for file, test in named:
            assert f"def {test}(" in (ROOT / file).read_text("utf-8"), (
                f"block {number}: {file} has no {test}"
            )


def test_every_block_has_a_row() -> None:
    assert sorted(int(path.name[:2]) for path in folder().glob("*.txt")) == sorted(recorded())


# ---- the blocks themselves ----


def test_blocks_that_ask_teachers_run(replaying: dict[str, Any]) -> None:
    """02, 03, 05 and 06: states to actions to pairs to normalized pairs, and all of it in one
    line."""
    names = run(2, {**replaying})
    assert set(names["teacher_actions"]) == {"s1:1", "s1:3"} and set(
        names["teacher_actions"]["s1:3"]
    ) == {"ash", "elm", "oak"}
    pairs = run(3, {**replaying})["pairs"]
    assert [pair["state_id"] for pair in pairs] == ["s1:1", "s1:3"] and pairs[0][
        "n_teachers_agreeing"
    ] == 3
    normalized = run(5, {**replaying})["normalized"]
    assert [dpo_pair["chosen"] for dpo_pair in normalized] == [
        'read {"path":"a.py"}'
    ] * 2 and isinstance(normalized[0], NormalizedDPOPair)
    names = run(6, {**replaying})
    assert (
        isinstance(names["teacher_actions"], TeacherActions)
        and names["normalized_pairs"] == normalized
    ), "two pairs are not two values"


def test_the_block_of_the_pair_names_fields_that_a_pair_has() -> None:
    """04."""
    theirs = get_type_hints(run(4, {"TypedDict": TypedDict})["DPOPair"])
    ours = {
        field.name: field for field in composer_replication.DPOPair.__dataclass_fields__.values()
    }
    assert {"state_id", "chosen", "rejected"} < set(theirs) <= set(ours)
    assert {name: kind.__name__ for name, kind in theirs.items()} == {
        name: ours[name].type.partition("[")[0] for name in theirs
    }


def test_blocks_that_train_run() -> None:
    """07 and 10."""
    components = run(7, training())["components"]
    parts = components.lm_ce + 0.1 * components.sdpo_jsd + 0.05 * components.trace_replay_dpo
    assert (
        components.total.item() == pytest.approx(parts.item(), rel=1e-6)
        and components.trace_replay_dpo.item() > 0
    )
    components.total.backward()
    names = run(10, training())
    assert (
        names["step"] == 2 and names["sched"].num_train_steps == 10_000 and names["sched"].t >= 0.4
    )
    assert names["components"].sdpo_jsd.item() > 0


@pytest.mark.parametrize("number", [8, 9])
def test_parameters_that_the_blocks_quote_are_those_of_compose_loss(number: int) -> None:
    names: dict[str, Any] = {"Literal": Literal}
    exec(f"def quoted(*,\n{block(number)}\n): ...", names)  # noqa: S102 - the block is a list of parameters
    ours = inspect.signature(composer_replication.compose_loss, eval_str=True).parameters
    for name, theirs in inspect.signature(names["quoted"]).parameters.items():
        assert ours[name].default == theirs.default and ours[name].kind == theirs.kind, name
        same = set(getattr(theirs.annotation, "__args__", ())) <= set(
            getattr(ours[name].annotation, "__args__", ())
        )
        assert same or theirs.annotation == ours[name].annotation, name


def test_the_test_that_the_guide_quotes_passes() -> None:
    """11."""
    names = run(11, {"torch": torch, "taid_loss": composer_replication.taid_loss})
    names["test_taid_loss_t_zero_target_matches_detached_student"]()


def test_the_block_of_local_replicas_runs() -> None:
    """12: four processes meet in the folder, and end with the same weights."""
    results = run(12, {})["results"]
    assert [result["rank"] for result in results] == [0, 1, 2, 3]
    assert len({result["weights_sha256"] for result in results}) == 1


def test_the_block_of_the_rendezvous_runs() -> None:
    """13, whose name the reader has imported as in 12: nothing is opened before it is used."""
    names = run(13, {"ObjectStoreAllReduce": composer_replication.ObjectStoreAllReduce})
    assert names["rendezvous"].uri == "s3://my-bucket/diloco-runs/run42/"


def test_the_block_of_cloud_executors_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """14, the jobs at a loopback server in the Hub's place, which starts local processes."""
    from huggingface_hub import constants

    more = {
        "entrypoint": "composer_replication.diloco.serverless.replica_entrypoint",
        "entrypoint_args": {"rendezvous_uri": tmp_path.as_uri()},
    }
    monkeypatch.setenv("RECOMPOSE_SHARED", str(tmp_path))
    monkeypatch.setenv("HF_TOKEN", "hf_none")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with HubServer() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        names = run(14, {"MORE": more})
        executor = names["executor"]
        executor.executor.poll_s = 0.1
        results = executor.collect(names["handles"], timeout=120)
        assert {spec["flavor"] for spec in hub.specs} == {"a10g-large"}
    assert [result["rank"] for result in results] == [0, 1, 2, 3]
    assert len({result["weights_sha256"] for result in results}) == 1


def test_the_block_of_the_trainer_runs_with_trl_and_says_what_to_install_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """15."""
    names: dict[str, Any] = {
        "OWN_MODEL": str(ROOT / "examples" / "workshop_student"),
        "own_reward": None,
        "MORE": {},
    }
    if TRL.problem():
        with pytest.raises(MissingExtraError, match=r"pip install 'trl>=1\.16,<1\.17'"):
            run(15, names)
        return
    from datasets import Dataset

    monkeypatch.chdir(tmp_path)
    rows = Dataset.from_list([{"prompt": [{"role": "user", "content": str(i)}]} for i in range(4)])
    options = {
        "max_steps": 1,
        "per_device_train_batch_size": 2,
        "num_generations": 2,
        "max_completion_length": 8,
        "save_strategy": "no",
    }
    args = composer_replication.ComposerReplicationConfig(
        output_dir="out", use_cpu=True, report_to="none", hint_weight=0.0, **options
    )
    names |= {
        "own_reward": lambda completions, **row: [float(n) for n in range(len(completions))],
        "MORE": {"args": args, "train_dataset": rows},
    }
    assert run(15, names)["trainer"].state.global_step == 1


def test_the_condition_that_the_guide_quotes_left_the_hint_out_without_a_word() -> None:
    """01: with no hint in the batch it is False, and the term was 0; here it raises."""
    condition = ast.parse(block(1) + "\n    fired = True")
    names: dict[str, Any] = {"alpha_sdpo": 0.1, "inputs": {}}
    exec(compile(condition, "block 1", "exec"), names)  # noqa: S102
    assert "fired" not in names
    without = {key: value for key, value in batch().items() if not key.startswith("ctx_")}
    with pytest.raises(
        DataError, match="sdpo_jsd has a weight, but the batch holds no ctx_teacher_input_ids"
    ):
        composer_replication.compose_loss(small_model(), without, alpha_sdpo=0.1, beta_replay=0.0)


def moved_tokens() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    now, then = (
        torch.rand(64, dtype=torch.float64) * 0.98 + 0.01,
        torch.rand(64, dtype=torch.float64) * 0.98 + 0.01,
    )
    mask = torch.arange(64) % 5 != 0
    return {
        "trainer_logprobs": now.log(),
        "inference_logprobs": then.log(),
        "advantages": torch.randn(64, dtype=torch.float64),
        "loss_mask": mask,
    }


def test_the_formula_that_the_guide_quotes_is_our_dppo() -> None:
    """16, with the default bounds and with others."""
    moved = moved_tokens()
    for high, low, tau, kl in ((0.2, 0.2, 1.0, 1e-3), (0.1, 0.3, 0.5, 0.05)):
        settings_of = {"dppo_mask_high": high, "dppo_mask_low": low, "adv_tau": tau, "kl_tau": kl}
        theirs = run(16, {**moved, **settings_of, "exp": torch.exp, "where": torch.where})["loss"]
        ours = dppo(
            moved["trainer_logprobs"],
            moved["inference_logprobs"],
            tau * moved["advantages"],
            mask_low=low,
            mask_high=high,
            kl_tau=kl,
        )
        assert ours[moved["loss_mask"]].sum().item() == pytest.approx(theirs.item(), rel=1e-12)
        inputs = Inputs(**moved, ref_logprobs=None, loss_weights=None)
        out = composer_replication.loss_fn(inputs, **settings_of)
        assert out.loss.item() == pytest.approx(theirs.item(), rel=1e-12)


# ---- the same without the blocks, by code of our own ----


def test_from_a_log_to_a_gradient_with_nothing_but_the_guides_names(
    tmp_path: Path, replaying: dict[str, Any]
) -> None:
    """Ingest, mark, hint, ask, agree, normalize, collate, and one step of all three terms: each
    hands on the input of the next one."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from composer_replication.ingestion import (
        ClaudeCodeIngester,
        claude_states_to_trace_examples,
    )  # pyright: ignore
    from composer_replication.loss import compose_loss  # pyright: ignore
    from composer_replication.replaysim import replay_and_normalize_trace  # pyright: ignore
    from composer_replication.tokens.tiny_tokenizer import train_tiny_tokenizer
    from composer_replication.trainer.data_collator import (
        CollatorConfig,
        ComposerDataCollator,
    )  # pyright: ignore

    records = [
        {
            "type": "user",
            "uuid": "u0",
            "sessionId": "s1",
            "message": {"role": "user", "content": "Fix the parser"},
        },
        _assistant(1, _call("c1", "read", path="b.py")),
        _result(2, "c1", "1 import os", error=False),
        _assistant(3, _call("c2", "reed", path="c.py")),
        _result(
            4,
            "c2",
            "<tool_use_error>Error: No such tool available: reed</tool_use_error>",
            error=True,
        ),
        _assistant(5, {"type": "text", "text": "Done."}),
    ]
    import json

    (tmp_path / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    ingested = ClaudeCodeIngester().ingest(tmp_path / "log.jsonl")
    examples = list(claude_states_to_trace_examples(ingested))
    actions, pairs = asyncio.run(
        replay_and_normalize_trace(
            states=ingested, teachers=composer_replication.DEFAULT_TEACHERS, max_total_usd=1.0
        )
    )
    assert len(pairs) >= 2 and set(actions) == {"s1:1", "s1:3", "s1:5"}
    tokenizer = train_tiny_tokenizer(
        ["Fix the parser read path import os Done. Available tools"] * 20, vocab_size=400
    )
    collator = ComposerDataCollator(tokenizer, CollatorConfig(enable_replay_dpo=True))
    tensors = collator(examples, pairs)
    assert (
        collator.skipped == {}
        and len(tensors["dpo_chosen_input_ids"]) == len(pairs)
        and len(tensors["sdpo_row"]) == 1
    )
    shape = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
    }
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **shape))
    parts = compose_loss(model, tensors, alpha_sdpo=0.1, beta_replay=0.05, dpo_variant="simpo")
    parts.total.backward()
    assert all(value.item() > 0 for value in (parts.lm_ce, parts.sdpo_jsd, parts.trace_replay_dpo))
    assert all(bool(torch.isfinite(p.grad).all()) for p in model.parameters() if p.grad is not None)


def test_the_choices_and_their_defaults_are_those_of_the_guide() -> None:
    ours: Mapping[str, inspect.Parameter] = inspect.signature(
        composer_replication.compose_loss, eval_str=True
    ).parameters
    defaults = {
        "dpo_variant": "dpo",
        "simpo_beta": 2.0,
        "simpo_gamma": 1.0,
        "sdpo_wrapper": "none",
        "taid_t": None,
        "entropy_opd_h_max": None,
    }
    assert {name: ours[name].default for name in defaults} == defaults
    assert (
        ours["dpo_variant"].annotation == Literal["dpo", "simpo"]
        and ours["sdpo_wrapper"].annotation == Literal["none", "taid", "entropy_opd"]
    )


def test_simpo_is_one_keyword_and_needs_no_reference() -> None:
    run = training()
    held = {key: value for key, value in run["batch"].items() if "ref_logprobs" not in key}
    parts = run["compose_loss"](
        run["model"], held, dpo_variant="simpo", simpo_beta=2.0, simpo_gamma=1.0
    )
    with_reference = run["compose_loss"](run["model"], run["batch"])
    assert (
        parts.lm_ce.item() == with_reference.lm_ce.item()
        and parts.trace_replay_dpo.item() != with_reference.trace_replay_dpo.item()
    )


def test_a_run_with_taid_moves_its_share() -> None:
    run, schedule = training(), composer_replication.TAIDScheduler(num_train_steps=10)
    shares = [schedule.t]
    for step in range(3):
        parts = run["compose_loss"](
            run["model"], run["batch"], sdpo_wrapper="taid", taid_t=schedule.t
        )
        parts.total.backward()
        run["optimizer"].step()
        shares.append(schedule.update_t(parts.sdpo_jsd.detach(), global_step=step))
    assert shares[0] == 0.4 and shares[1:] == sorted(shares[1:]) and shares[-1] == schedule.t > 0.4


def test_at_share_0_the_teacher_says_nothing() -> None:
    student, teachers = (
        torch.randn(1, 2, 4, requires_grad=True),
        (
            torch.randn(1, 2, 4),
            torch.randn(1, 2, 4),
        ),
    )
    first_loss, second_loss = (
        composer_replication.taid_loss(student, teacher, torch.ones(1, 2), t=0.0).item()
        for teacher in teachers
    )
    assert first_loss == pytest.approx(second_loss, abs=1e-6)
    first_loss, second_loss = (
        composer_replication.taid_loss(student, teacher, torch.ones(1, 2), t=0.5).item()
        for teacher in teachers
    )
    assert abs(first_loss - second_loss) > 1e-3


def test_dppo_drops_tokens_whose_probability_moved_too_far_and_keeps_their_kl() -> None:
    tokens = moved_tokens()
    now, then, advantage = (
        tokens["trainer_logprobs"],
        tokens["inference_logprobs"],
        tokens["advantages"],
    )
    moved = now.exp() - then.exp()
    for n, value in enumerate(
        dppo(now, then, advantage, mask_low=0.3, mask_high=0.1, kl_tau=0.05).tolist()
    ):
        dropped = moved[n] > 0.1 if advantage[n] > 0 else moved[n] < -0.3
        gain = 0.0 if dropped else float(advantage[n] * (now[n] - then[n]).exp())
        assert value == pytest.approx(0.05 * float(now[n] - then[n]) ** 2 - gain, rel=1e-12)
