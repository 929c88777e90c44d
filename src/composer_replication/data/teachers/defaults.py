"""The default teachers: open-weight models of three makers, through one router with one key.

The prices are the highest accepted, not those billed: they are sent to the router, which then uses
no dearer provider.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from composer_replication.core.config.teacher_settings import TeacherSettings

DEFAULT_TEACHERS: Mapping[str, TeacherSettings] = MappingProxyType(
    {
        "kimi": TeacherSettings(
            model="moonshotai/kimi-k2.6", max_input_usd_per_mtok=1.5, max_output_usd_per_mtok=6.0
        ),
        "glm": TeacherSettings(
            model="z-ai/glm-5.2", max_input_usd_per_mtok=1.5, max_output_usd_per_mtok=6.0
        ),
        "deepseek": TeacherSettings(
            model="deepseek/deepseek-v4-pro",
            max_input_usd_per_mtok=2.0,
            max_output_usd_per_mtok=4.0,
        ),
    }
)
"""By name, in the order of asking; the key is expected in OPENROUTER_API_KEY."""

CHOSEN_ON = "2026-11-22"
"""When these models and prices were chosen; a better choice may have come out since."""

BATCH_DISCOUNTS: Mapping[str, float] = MappingProxyType({"api.openai.com": 0.5})
"""Published discounts on answers in batches, by host; read on 2026-11-27 in OpenAI's Batch API
FAQ."""
