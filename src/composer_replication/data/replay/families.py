"""Which family a model belongs to: who made it, because models of one maker share data, and with it their mistakes.

family_of("claude-opus-4-5-20251101")       -> "anthropic"
family_of("moonshotai/kimi-k2.5")           -> "moonshot"

A model that is not in the table is a family of its own, under its own name; "" where nobody knows who wrote.
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
    """The maker of a model by its id: of the model itself, not of the service that runs it.

    >>> family_of("nvidia/llama-3.3-nemotron-super-49b"), family_of("my-own-model"), family_of(None)
    ('meta', 'my-own-model', '')
    """
    if not model or model in _NOT_A_MODEL:
        return ""
    name = model.lower()
    for part in reversed(re.split(r"[/:@]", name)):  # the last part names the model, those before it a service or a maker
        for start in (match.start() for match in re.finditer(r"(?<![a-z])[a-z]", part)):
            for family, rule in _RULES:
                if rule.match(part, start):
                    return family
    return name
