"""The commands that serve an exported folder; none of these servers is a dependency.

The docs say which of them were run.

    serve_commands(folder, form="merged", base="", family="qwen3", rank=0, name="x")[0]
    # ("vLLM", "vllm serve runs/x ...")
"""

from __future__ import annotations

import shlex
from pathlib import Path

TOOL_PARSERS = {
    "qwen2.5": "hermes", "qwen3": "hermes", "qwen3-thinking": "hermes", "qwen3-2507": "hermes",
    "chatml-tools": "hermes",
    "qwen3.5": "qwen3_coder", "qwen3.5-thinking": "qwen3_coder",
    "qwen3.6": "qwen3_coder", "qwen3.6-thinking": "qwen3_coder",
    "llama3": "llama3_json", "glm-4.5": "glm45", "glm-4.5-thinking": "glm45", "gpt-oss": "openai",
    "mistral-v7": "mistral", "mistral-v11": "mistral", "mistral-v13": "mistral",
    "deepseek-v3": "deepseek_v3",
}  # fmt: skip
"""Template family -> vLLM's name of its tool-call parser (not run here); missing = none."""
LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # what vLLM's --max-lora-rank accepts


def serve_commands(
    folder: Path, *, form: str, base: str, family: str, rank: int, name: str
) -> list[tuple[str, str]]:
    """(server, command line), best first. An adapter is served beside its base."""
    template = folder / "chat_template.jinja"
    tools = (
        ["--enable-auto-tool-choice", "--tool-call-parser", TOOL_PARSERS[family]]
        if family in TOOL_PARSERS
        else []
    )
    path = str(folder)
    if form == "adapter":
        most = str(next((r for r in LORA_RANKS if r >= rank), rank))
        lora = [
            "--enable-lora",
            "--max-lora-rank",
            most,
            "--lora-modules",
            f"{name}={path}",
            "--chat-template",
            str(template),
        ]
        return [
            ("vLLM", shlex.join(["vllm", "serve", base, *lora, *tools])),
            (
                "llama.cpp, as a GGUF adapter",
                shlex.join(
                    [
                        "python",
                        "convert_lora_to_gguf.py",
                        path,
                        "--base",
                        base,
                        "--outfile",
                        f"{name}.gguf",
                    ]
                ),
            ),
        ]
    gguf = shlex.join(["python", "convert_hf_to_gguf.py", path, "--outfile", f"{name}.gguf"])
    llama = shlex.join(
        [
            "llama-server",
            "-m",
            f"{name}.gguf",
            "--alias",
            name,
            "--jinja",
            "--chat-template-file",
            str(template),
        ]
    )
    return [
        ("vLLM", shlex.join(["vllm", "serve", path, "--served-model-name", name, *tools])),
        ("transformers", shlex.join(["transformers", "serve", path])),
        ("llama.cpp", f"{gguf} && {llama}"),
    ]
