"""Messages of an environment in another process: nothing is lost on the wire, and no address beyond
this machine is taken. With the packages themselves: tests/backends_openenv, _verifiers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from composer_replication.core.errors import ConfigError, DataError, MissingExtraError
from composer_replication.core.trace import (
    ENVIRONMENT,
    HUMAN,
    Text,
    ToolCall,
    ToolResult,
    ToolSpec,
    Turn,
)
from composer_replication.rollouts.envs import openenv
from composer_replication.rollouts.envs.env import Opening
from composer_replication.rollouts.envs.env_json import (
    message_from_wire,
    message_to_wire,
    opening_from_wire,
    opening_to_wire,
)
from composer_replication.rollouts.openenv_tasks import openenv_source, serve_openenv
from composer_replication.rollouts.verifiers_tasks import (
    make_agent,
    plugin_source,
    student_turn,
)

SPEC = ToolSpec(name="read", description="Read.", parameters={"type": "object"})
ASKED = Turn(role="user", author=HUMAN, blocks=(Text("Fix it"),))
CALLED = Turn(
    role="assistant",
    author=None,
    blocks=(Text("Look:"), ToolCall("c1", "read", {"path": "a"}), ToolCall("c2", "read", {})),
)
ANSWERED = Turn(
    role="tool",
    author=ENVIRONMENT,
    blocks=(ToolResult("c1", "x = 1", False), ToolResult("c2", "no path", True)),
)


@pytest.mark.parametrize("turn", [ASKED, CALLED, ANSWERED])
def test_a_message_comes_back_as_it_was(turn: Turn) -> None:
    assert message_from_wire(json.loads(json.dumps(message_to_wire(turn)))) == turn


def test_an_opening_comes_back_as_it_was() -> None:
    opening = Opening(turns=(ASKED,), tools=(SPEC,))
    assert opening_from_wire(json.loads(json.dumps(opening_to_wire(opening)))) == opening


@pytest.mark.parametrize("value", [{}, {"role": "user"}, {**message_to_wire(CALLED), "calls": [1]}])
def test_what_is_no_message_is_refused(value: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="not a message of an environment"):
        message_from_wire(value)


@pytest.mark.parametrize("arguments", ["{broken", "[1]", '"text"'])
def test_arguments_that_are_no_object_become_a_call_that_fails(arguments: str) -> None:
    call = {"id": "c7", "function": {"name": "read", "arguments": arguments}}
    turn = student_turn({"content": None, "tool_calls": [call]})
    assert turn.calls == (ToolCall("c7", "read", {"": arguments}),)


@pytest.mark.parametrize(
    "url", ["http://10.0.0.5:8000", "http://envs.example.org", "ws://0.0.0.0:1", "nothing"]
)
def test_an_address_beyond_this_machine_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="not on this machine"):
        openenv.check_loopback(url)
    with pytest.raises(ConfigError, match="not on this machine"):
        openenv_source(url)
    with pytest.raises(ConfigError, match="not on this machine"), serve_openenv(host="0.0.0.0"):
        pass


def test_without_an_endpoint_or_a_runtime_no_agent_is_made() -> None:
    with pytest.raises(ConfigError, match="no base_url: verifiers' own default is its maker's"):
        make_agent(model="m", base_url="", runtime=object())
    with pytest.raises(ConfigError, match="no runtime"):
        make_agent(model="m", base_url="http://127.0.0.1:1/v1", runtime=None)


def test_without_the_packages_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import importlib
    from collections.abc import Callable

    real: Callable[..., Any] = importlib.import_module

    def missing(name: str, *more: Any) -> Any:
        if name.split(".")[0] in ("openenv", "verifiers"):
            raise ModuleNotFoundError(name, name=name)
        return real(name, *more)

    monkeypatch.setattr(importlib, "import_module", missing)
    env = openenv.OpenEnvEnv(url="http://127.0.0.1:1", task_id="t", reset={})
    with pytest.raises(MissingExtraError, match="'openenv', which is not installed"):
        env.open()
    with pytest.raises(MissingExtraError, match="'verifiers', which is not installed"):
        make_agent(model="m", base_url="http://127.0.0.1:1/v1", runtime=object())
    assert "plugin_classes" in plugin_source()
