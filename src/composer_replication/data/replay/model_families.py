"""The family of a model: its maker, because models of one maker share data and thus mistakes.

    family_of("claude-opus-4-5-20251101")       -> "anthropic"
    family_of("moonshotai/kimi-k2.5")           -> "moonshot"

A model that is not in the table is a family by itself, under its own name; "" if the author is
unknown.
"""

from __future__ import annotations

import re

_MAKERS: tuple[tuple[str, str], ...] = (
    ("anthropic", r"claude|anthropic|opus|sonnet|haiku|fable"),
    ("openai", r"gpt|chatgpt|codex|davinci|o[1345](?=$|-)|openai"),
    ("google", r"gemini|gemma|google"),
    ("alibaba", r"qwen|qwq|qvq|tongyi|alibaba"),
    ("deepseek", r"deepseek"),
    ("moonshot", r"kimi|moonshot|moonshotai"),
    ("zhipu", r"glm|chatglm|z-ai|zai|zhipu|thudm"),
    ("meta", r"llama|codellama|meta-llama|meta-ai"),
    ("mistral", r"mistral|mixtral|codestral|devstral|magistral|ministral|mistralai"),
    ("xai", r"grok|x-ai|xai"),
    ("minimax", r"minimax|abab"),
    ("amazon", r"nova-(?:pro|lite|micro|premier)|amazon"),
    ("microsoft", r"phi-?[1-9]|wizardlm|microsoft"),
    ("cohere", r"command-[ra]|c4ai|cohere"),
    ("nvidia", r"nemotron|nvidia"),
    ("ibm", r"granite|ibm"),
    ("bytedance", r"seed-oss|doubao|bytedance"),
    ("tencent", r"hunyuan|tencent"),
    ("ai2", r"olmo|tulu|allenai"),
    ("xiaomi", r"mimo|xiaomi"),
    ("baidu", r"ernie|baidu"),
    ("stepfun", r"step-[1-9]|stepfun"),
    ("inception", r"mercury-coder|inception"),
)
_RULES = tuple((family, re.compile(rf"(?:{names})(?![a-z])")) for family, names in _MAKERS)
_NOT_A_MODEL = frozenset(("human", "harness", "environment", "<synthetic>"))


def family_of(model: str | None) -> str:
    """Return the maker of a model by its id: of the model, not of the service that runs it.

    >>> family_of("nvidia/llama-3.3-nemotron-super-49b"), family_of("my-own-model"), family_of(None)
    ('meta', 'my-own-model', '')
    """
    if not model or model in _NOT_A_MODEL:
        return ""
    return known_maker(model) or model.lower()


def known_maker(model: str) -> str:
    """Return the maker of a model by its id if it is in the table, else "".

    >>> known_maker("z-ai/glm-5.2"), known_maker("my-own-model")
    ('zhipu', '')
    """
    # The last part names the model, those before it a service or a maker.
    for part in reversed(re.split(r"[/:@]", model.lower())):
        for start in (match.start() for match in re.finditer(r"(?<![a-z])[a-z]", part)):
            for family, rule in _RULES:
                if rule.match(part, start):
                    return family
    return ""


def answering_family(family: str, *, asked: str, reported: str | None) -> str:
    """Return the family of an answer: the teacher's, or another maker's if the server reports one.

    A router may fall back to another model, and an alias may stand for any. A reported name that is
    not in the table changes nothing.

    >>> answering_family("zhipu", asked="z-ai/glm-5.2", reported="anthropic/claude-opus-4-5")
    'anthropic'
    >>> answering_family("glm", asked="glm-5", reported="glm-5-0711")
    'glm'
    >>> answering_family("mine", asked="alias", reported="some-server")
    'mine'
    """
    maker = known_maker(reported or "")
    return (
        family if not maker or maker in (family, known_maker(family), known_maker(asked)) else maker
    )
