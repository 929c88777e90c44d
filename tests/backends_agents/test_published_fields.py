"""Every field of the published requests is used, ignored or refused here; each in one list."""

from __future__ import annotations

from typing import Any

import pytest

from composer_replication.serve.client_messages import Wire
from composer_replication.serve.request_fields import IGNORED, REFUSED, USED

pytestmark = pytest.mark.backend


def published(wire: Wire) -> list[Any]:
    """The types of a wire format's requests in its provider's package."""
    pytest.importorskip(
        "anthropic" if wire == "messages" else "openai", reason="`make backends` runs this test"
    )
    if wire == "messages":
        from anthropic.types import message_create_params
        from anthropic.types.beta import message_create_params as beta

        return [m.MessageCreateParamsStreaming for m in (message_create_params, beta)]
    if wire == "responses":
        from openai.types.responses import response_create_params

        return [response_create_params.ResponseCreateParamsStreaming]
    from openai.types.chat import completion_create_params

    return [completion_create_params.CompletionCreateParamsStreaming]


@pytest.mark.parametrize("wire", ["chat", "responses", "messages"])
def test_every_published_field_is_known(wire: Wire) -> None:
    fields = {name for kind in published(wire) for name in kind.__annotations__}
    assert {"model", "stream", "tools"} <= fields
    assert fields <= {*USED[wire], *IGNORED[wire], *REFUSED[wire]}
