"""Loading, the tiny student, hidden states and logits, saving."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)

from composer_replication.core.config.student_settings import LoraSettings, StudentSettings
from composer_replication.core.errors import ConfigError, DataError
from composer_replication.models.forward import (
    check_projection,
    decoder_of,
    final_hidden,
    project,
    scoring,
    sliced_predictors,
)
from composer_replication.models.load_student import Student, load_student
from composer_replication.models.pretrained_folder import load_weights, save_student
from composer_replication.models.tiny import make_tiny
from composer_replication.tokens.hf import load_tokenizer
from composer_replication.tokens.tiny_tokenizer import train_tiny_tokenizer

TEXTS = [
    f"def function_{i}(argument): return argument + {i}  # {'spam eggs '[: i % 10]}"
    for i in range(300)
]
SHAPE: dict[str, Any] = {
    "vocab_size": 30,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tiny_tokenizer(TEXTS, vocab_size=600)


def model_of(family: str) -> Any:
    torch.manual_seed(0)
    options = {
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
        "llama with a biased head": lambda: _biased(LlamaForCausalLM(LlamaConfig(**SHAPE))),
        "gemma2 with a soft cap": lambda: Gemma2ForCausalLM(
            Gemma2Config(**SHAPE, head_dim=8, final_logit_softcapping=0.05)
        ),
        "granite with scaling": lambda: GraniteForCausalLM(
            GraniteConfig(**SHAPE, logits_scaling=3.0)
        ),
        "cohere with a scale": lambda: CohereForCausalLM(CohereConfig(**SHAPE, logit_scale=0.3)),
        "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=30, n_embd=16, n_layer=1, n_head=2)),
    }
    return options[family]()


def _biased(model: Any) -> Any:
    head = nn.Linear(16, 30, bias=True)
    model.set_output_embeddings(head)
    return model


FAMILIES = (
    "llama",
    "llama with a biased head",
    "gemma2 with a soft cap",
    "granite with scaling",
    "cohere with a scale",
    "gpt2",
)


@pytest.mark.parametrize("family", FAMILIES)
def test_projected_hidden_states_are_the_models_own_logits(family: str) -> None:
    model = model_of(family).eval()
    ids_BT = torch.tensor([[3, 4, 5, 6], [7, 8, 9, 9]])
    hidden_BTD = final_hidden(model, ids_BT)
    assert torch.allclose(
        project(model, hidden_BTD[1]), model(input_ids=ids_BT).logits[1], atol=1e-5
    )
    check_projection(model)


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_on_the_right_reaches_no_token(family: str) -> None:
    """Without a mask: whatever follows a row's end, its hidden states are those of the row alone
    and of a masked forward."""
    model = model_of(family).eval()
    ids_BT = torch.tensor([[3, 4, 5, 6, 7, 8], [7, 8, 9, 0, 0, 0], [7, 8, 9, 2, 29, 5]])
    hidden_BTD = final_hidden(model, ids_BT)
    mask_BT = torch.tensor([[1] * 6, [1, 1, 1, 0, 0, 0], [1] * 6])
    masked_BTD = decoder_of(model)(
        input_ids=ids_BT, attention_mask=mask_BT, use_cache=False
    ).last_hidden_state
    assert torch.equal(hidden_BTD[1, :3], hidden_BTD[2, :3])
    assert torch.allclose(hidden_BTD[1, :3], masked_BTD[1, :3], atol=1e-6)
    assert torch.allclose(hidden_BTD[1, :3], final_hidden(model, ids_BT[1:2, :3])[0], atol=1e-6)


def test_a_model_with_an_unknown_step_behind_its_head_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = model_of("llama")
    forward = model.forward
    monkeypatch.setattr(
        model, "forward", lambda **k: SimpleNamespace(logits=forward(**k).logits * 1.5)
    )
    with pytest.raises(ConfigError, match="between its head and its logits"):
        check_projection(model)


def test_a_model_without_a_head_is_refused() -> None:
    bare = SimpleNamespace(
        get_decoder=lambda: None, get_output_embeddings=lambda: None, base_model_prefix="model"
    )
    with pytest.raises(ConfigError, match="no decoder and output head"):
        decoder_of(bare)


def test_logits_are_float32_from_bfloat16_weights() -> None:
    model = model_of("llama").bfloat16()
    hidden = torch.randn(5, 16).bfloat16()
    exact = hidden.double() @ model.lm_head.weight.double().T
    assert project(model, hidden).dtype == torch.float32
    assert torch.allclose(project(model, hidden).double(), exact, atol=1e-5)
    assert not torch.allclose(model.lm_head(hidden).double(), exact, atol=1e-5)


def test_rows_in_parts_give_the_same_predictors() -> None:
    model = model_of("llama").eval()
    ids_BT = torch.randint(3, 30, (5, 9))
    lengths_B = torch.tensor([4, 9, 3, 9, 5])
    row_N, position_N = torch.tensor([0, 1, 1, 3, 4, 4]), torch.tensor([3, 1, 8, 8, 2, 4])
    results = [
        sliced_predictors(
            model, ids_BT, lengths_B, row_N=row_N, position_N=position_N, max_tokens=limit
        )
        for limit in (1, 10, 20, 1000)
    ]
    for row, position, *values in zip(row_N, position_N, *results, strict=True):
        alone = final_hidden(model, ids_BT[row : row + 1, :position])[0, -1]
        assert all(torch.allclose(state, alone, atol=1e-5) for state in values)


# ---- the tiny student ----


def test_the_tiny_student_has_the_promised_size_and_is_made_from_its_seed(tokenizer: Any) -> None:
    model = make_tiny(tokenizer, seed=3)
    torch.manual_seed(99)
    again, another = make_tiny(tokenizer, seed=3), make_tiny(tokenizer, seed=4)
    assert 400_000 <= sum(p.numel() for p in model.parameters()) <= 800_000
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True)
    )
    assert not torch.equal(
        model.get_input_embeddings().weight, another.get_input_embeddings().weight
    )
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert model.config.eos_token_id == tokenizer.eos_token_id and model.config.vocab_size == len(
        tokenizer
    )


def test_making_it_leaves_the_random_state_alone(tokenizer: Any) -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    make_tiny(tokenizer, seed=3)
    assert torch.equal(torch.rand(3), expected)


def test_a_vocabulary_that_breaks_the_promise_is_refused() -> None:
    class Huge(SimpleNamespace):
        def __len__(self) -> int:
            return 9000

    huge = Huge(pad_token_id=0, eos_token_id=1, bos_token_id=None)
    with pytest.raises(ConfigError, match=r"9000 tokens has \d+ parameters"):
        make_tiny(huge, seed=0)


# ---- loading ----


def test_tiny_by_name_saved_and_loaded_by_folder(tokenizer: Any, tmp_path: Path) -> None:
    student = load_student(StudentSettings(), tokenizer=tokenizer, seed=5)
    assert (
        student.num_trainable == student.num_parameters
        and student.pad_id == tokenizer.pad_token_id
        and not student.lora
    )
    save_student(student, tmp_path / "tiny")
    again = load_student(
        StudentSettings(model=str(tmp_path / "tiny")),
        tokenizer=load_tokenizer(str(tmp_path / "tiny")),
        seed=0,
    )
    for (name, a), (other_name, b) in zip(
        student.model.named_parameters(), again.model.named_parameters(), strict=True
    ):
        assert name == other_name and torch.equal(a, b)
    assert again.tokenizer("def x")["input_ids"] == tokenizer("def x")["input_ids"]
    named = json.loads((tmp_path / "tiny" / "config.json").read_bytes())["architectures"]
    assert named == ["Qwen3ForCausalLM"], (
        "without it `transformers serve` and vLLM do not know which class to load"
    )


def test_precision_is_that_of_the_settings(tokenizer: Any) -> None:
    assert (
        load_student(StudentSettings(dtype="bfloat16"), tokenizer=tokenizer, seed=5).model.dtype
        == torch.bfloat16
    )


def test_a_name_that_cannot_be_loaded_is_a_clear_error(tokenizer: Any, tmp_path: Path) -> None:
    for name, message in (
        (str(tmp_path / "nothing"), r"no such folder: .*student\.model.*hub name"),
        ("no-such-user/no-such-model", r"cannot load .*student\.model.*hub name"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_student(StudentSettings(model=name), tokenizer=tokenizer, seed=0)


def test_a_tokenizer_larger_than_the_model_is_refused(tokenizer: Any, tmp_path: Path) -> None:
    model_of("llama").save_pretrained(str(tmp_path / "small"))
    with pytest.raises(ConfigError, match="the model embeds 30"):
        load_student(StudentSettings(model=str(tmp_path / "small")), tokenizer=tokenizer, seed=0)


def test_a_special_token_that_no_template_writes_needs_no_row(
    tokenizer: Any, tmp_path: Path
) -> None:
    settings = StudentSettings(model=str(tmp_path / "text"))
    make_tiny(tokenizer, seed=5).save_pretrained(settings.model)
    rows = len(tokenizer)
    surplus = copy.deepcopy(tokenizer)
    surplus.add_special_tokens({"additional_special_tokens": ["<image>"]})
    assert len(surplus) == rows + 1
    assert load_student(settings, tokenizer=surplus, seed=0).num_parameters > 0
    surplus.chat_template = f"<image>{surplus.chat_template}"
    with pytest.raises(ConfigError, match=f"has {rows + 1} tokens, the model embeds {rows}"):
        load_student(settings, tokenizer=surplus, seed=0)


def test_adapters_are_made_without_a_warning_of_a_library(
    tokenizer: Any, recwarn: pytest.WarningsRecorder
) -> None:
    """peft's FutureWarning about a name of transformers came out among the lines of `train`."""
    load_student(StudentSettings(lora=LoraSettings(rank=2)), tokenizer=tokenizer, seed=5)
    assert [str(w.message) for w in recwarn if w.category is FutureWarning] == []


def test_lora_starts_as_no_change_and_comes_back_from_disk(tokenizer: Any, tmp_path: Path) -> None:
    settings = StudentSettings(lora=LoraSettings(rank=2, alpha=4))
    student = load_student(settings, tokenizer=tokenizer, seed=5)
    ids_BT = torch.tensor([[3, 4, 5, 6]])
    plain = final_hidden(make_tiny(tokenizer, seed=5).eval(), ids_BT)
    with scoring(student.model):
        assert torch.equal(final_hidden(student.model, ids_BT), plain)
    with torch.no_grad():
        for name, p in student.model.named_parameters():
            if "lora_B" in name:
                p.add_(0.1)
    with scoring(student.model):
        moved = final_hidden(student.model, ids_BT)
    with scoring(student.model, adapters=False):
        assert torch.equal(final_hidden(student.model, ids_BT), plain)
    assert not torch.allclose(moved, plain)
    save_student(student, tmp_path / "adapter")
    fresh = load_student(settings, tokenizer=tokenizer, seed=5)
    load_weights(fresh, tmp_path / "adapter")
    with scoring(fresh.model):
        assert torch.equal(final_hidden(fresh.model, ids_BT), moved)


def test_weights_of_another_model_are_refused(tokenizer: Any, tmp_path: Path) -> None:
    save_student(load_student(StudentSettings(), tokenizer=tokenizer, seed=5), tmp_path / "tiny")
    unfit = Student(name="other", model=model_of("gpt2"), tokenizer=tokenizer)
    with pytest.raises(DataError, match="another model"):
        load_weights(unfit, tmp_path / "tiny")
