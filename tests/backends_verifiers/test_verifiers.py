"""Our tasks in verifiers' own agent, against an endpoint on this machine that plays by script: same
rewards and mistakes as here, and traces that are Sessions."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from composer_replication.core.config.data_settings import SitesSettings
from composer_replication.core.errors import ConfigError
from composer_replication.core.trace import Text, ToolCall, Turn
from composer_replication.data.chat import to_chat
from composer_replication.data.sites.find_sites import find_sites
from composer_replication.rollouts.task_source import TaskSource, nth_task, open_world
from composer_replication.rollouts.verifiers_tasks import (
    INFO,
    PLUGIN,
    make_agent,
    plugin_source,
    session_of_trace,
    tasks_of,
)
from composer_replication.workshop.demonstrators import oracle

pytestmark = pytest.mark.backend
SEED, COUNT = 7, 2


class Script:
    """Plays each task in a twin of its environment: one call of an unknown tool, then the oracle.
    Conversations are told apart by their request."""

    def __init__(self, source: TaskSource) -> None:
        self.twins: dict[str, Any] = {}
        self.written: dict[str, list[Turn]] = {}
        self.requests: list[dict[str, Any]] = []
        for number in range(COUNT):
            env: Any = nth_task(source, seed=SEED, number=number, split="train")
            self.twins[env.open().turns[-1].text] = env

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        self.requests.append(request)
        key = next(m["content"] for m in request["messages"] if m["role"] == "user")
        env, written = self.twins[key], self.written.setdefault(key, [])
        turn = oracle(env)
        if not written:
            call = ToolCall("wrong_0", "no_such_tool", {})
            turn = Turn(role="assistant", author=None, blocks=(Text("Let me see."), call))
        written.append(turn)
        env.reply(turn)
        return to_chat(turn)[0]


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Script]]:
    """A chat-completions endpoint whose every answer is the script's."""
    monkeypatch.setenv("COMPOSER_API_KEY", "x")
    with open_world("workshop") as source:
        script = Script(source)

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                message = script.answer(json.loads(body))
                choice = {"index": 0, "message": message, "finish_reason": "stop"}
                usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
                answer = {
                    "id": "r", "object": "chat.completion", "created": 0, "model": "student",
                    "choices": [choice], "usage": usage,
                }  # fmt: skip
                data = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1", script
        server.shutdown()
        server.server_close()


def played(url: str) -> list[Any]:
    import verifiers.v1 as vf

    async def play() -> list[Any]:
        agent = make_agent(model="student", base_url=url, runtime=vf.SubprocessConfig())
        async with agent:
            tasks = tasks_of("workshop", seed=SEED, count=COUNT)
            return list(await asyncio.gather(*(agent.run(task) for task in tasks)))

    return asyncio.run(play())


def test_an_episode_in_verifiers_is_the_episode_here(endpoint: tuple[str, Script]) -> None:
    url, script = endpoint
    traces = played(url)
    twins = list(script.twins.values())
    for trace, twin in zip(traces, twins, strict=True):
        assert not trace.has_error, trace.errors
        assert trace.info[INFO]["task_id"] == twin.task_id
        assert trace.reward == twin.reward()
        assert trace.info[INFO]["measures"] == dict(twin.measures())
        assert trace.metrics["failed_calls"] == 1.0
    assert script.requests[0]["tools"], "the tools are offered"
    assert {request["model"] for request in script.requests} == {"student"}


def test_a_trace_is_a_session_with_its_errors(endpoint: tuple[str, Script]) -> None:
    url, script = endpoint
    trace = played(url)[0]
    session = session_of_trace(trace, name="s1")
    written = script.written[next(iter(script.twins))]
    said = [turn for turn in session.turns if turn.role == "assistant"]
    assert [turn.calls for turn in said] == [turn.calls for turn in written]
    assert said[0].text == "Let me see."
    assert {tool.name for tool in session.tools} >= {"run_tests"}
    assert session.outcome == trace.reward
    results = {result.call_id: result for turn in session.turns for result in turn.results}
    assert results["wrong_0"].is_error is True
    assert [result.is_error for result in results.values()].count(True) == 1
    (site,) = find_sites(session, settings=SitesSettings())
    assert (site.call_id, site.kind) == ("wrong_0", "unknown_tool")


def test_no_default_reaches_a_cloud() -> None:
    import verifiers.v1 as vf

    with pytest.raises(ConfigError, match="no base_url"):
        make_agent(model="m", base_url="", runtime=vf.SubprocessConfig())
    with pytest.raises(ConfigError, match="no runtime"):
        make_agent(model="m", base_url="http://127.0.0.1:1/v1", runtime=None)
    agent = make_agent(model="m", base_url="http://127.0.0.1:1/v1", runtime=vf.SubprocessConfig())
    assert agent.config.runtime.type == "subprocess"
    assert agent.config.client.base_url == "http://127.0.0.1:1/v1"


def test_the_plugin_file_is_what_verifiers_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from verifiers.v1.utils.loaders import harness_class, taskset_class

    (tmp_path / f"{PLUGIN}.py").write_text(plugin_source(), "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, PLUGIN, raising=False)
    importlib.invalidate_caches()
    assert taskset_class(PLUGIN).__name__ == "ComposerTaskset"
    assert harness_class(PLUGIN).__name__ == "ComposerHarness"
    assert sys.modules[PLUGIN].__file__ == str(tmp_path / f"{PLUGIN}.py")
