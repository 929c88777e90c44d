"""Rollouts that an agent program plays: your Claude Code in the sandbox, the student's messages.

    sampler = ProgramSampler(RolloutSettings(env="repo", player="claude-code"))
    rollouts = sampler(model, envs, renderer=renderer, settings=Sampling(), author="student")

The program is started in the task's tree, behind the walls of the repository's sandbox. Its only
way out is 127.0.0.1, where a relay leads to the endpoint of serve/, which answers with the model's
messages and keeps every token. The tree is judged as after any episode. The conversations of an
episode share its reward. A program that does not end by itself with exit code 0 earns nothing; one
that asks for no message loses its episode, and if all do, that is an error.
"""

from __future__ import annotations

import os
import shlex
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from composer_replication.core.config.rollout_settings import RolloutSettings
from composer_replication.core.errors import DataError
from composer_replication.core.trace import (
    HUMAN,
    Segment,
    Session,
    SourceRef,
    Text,
    ToolCall,
    Turn,
)
from composer_replication.repositories.playing.program_files import PLAYER, program_files
from composer_replication.repositories.playing.repo_env import RepoEnv
from composer_replication.repositories.sandbox.episode_tree import EpisodeTree, EpisodeTreeError
from composer_replication.repositories.sandbox.tree_sandbox import ProcessLimits
from composer_replication.repositories.task_language import language_named
from composer_replication.rollouts.chat_format import ChatFormat
from composer_replication.rollouts.envs.env import Env, remark_events
from composer_replication.rollouts.episode import Rollout
from composer_replication.rollouts.sampler import add_counts, session_names
from composer_replication.rollouts.sampling import Sampling
from composer_replication.rollouts.sampling_stats import SamplingStats
from composer_replication.rollouts.served import ServedModel
from composer_replication.serve import relay
from composer_replication.serve.agent_programs import Assignment, launch_of
from composer_replication.serve.endpoint import HOST, Endpoint
from composer_replication.serve.episode_record import EpisodeRecord
from composer_replication.serve.recorded_sessions import played_rollouts
from composer_replication.serve.student_writers import LocalWriter, ServedWriter, Writer

HOME = Path("/tmp/home")
"""The program's home, inside."""
_PORT = 8801  # in a namespace of its own every port is free
_SOCKET, _RELAY = "/endpoint/socket", "/endpoint/relay.py"
_TOOLS = "/tmp/tools"
_SHOWN = 400
_MOST_AT_ONCE = 4
_LIMITS = ProcessLimits(cpu_s=3600, memory_mb=1 << 20, processes=2048, file_mb=256, tree_mb=512)
"""A JavaScript engine reserves far more addresses than it uses, and counts its threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedProgram:
    """What a program said at its end, and why it earns nothing ("" = it may earn)."""

    output: str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ProgramSampler:
    """Plays episodes of `RepoEnv` with the program of `rollouts.player`."""

    settings: RolloutSettings

    def __call__(
        self,
        model: Any,
        envs: Sequence[Env],
        *,
        renderer: Any,
        settings: Sampling,
        author: str,
        label: str = "",
        version: int = -1,
        stats: SamplingStats | None = None,
    ) -> list[Rollout]:
        """The rollouts of one episode for each environment, in order."""
        stats = stats if stats is not None else SamplingStats()
        chat_format = ChatFormat.of(renderer, author=author)
        settings = self._bounded(settings)
        writers = _writers(model, chat_format, settings, version=version)
        with ExitStack() as stack, stats.timing("total"):
            for env in envs:
                stack.callback(env.close)
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="composer-play-")))
            endpoint = stack.enter_context(Endpoint(socket=folder / "socket"))
            os.chmod(folder / "socket", 0o666)  # as root, the program is nobody
            threads = min(settings.limits.tool_threads, _MOST_AT_ONCE)
            pool = stack.enter_context(ThreadPoolExecutor(threads))

            def play(env: Env, name: str, writer: Writer) -> list[Rollout]:
                assert isinstance(env, RepoEnv)
                record = EpisodeRecord(
                    name,
                    chat_format=chat_format,
                    writer=writer,
                    settings=settings,
                    task_id=env.task_id,
                )
                return self._play(env, record, endpoint)

            every: list[list[Rollout]] = []
            for rollouts in pool.map(play, envs, session_names(envs, label), writers):
                every.append(rollouts)
                stats.num_ended += 1
        if envs and all(rollouts[0].ended == "env_error" for rollouts in every):
            raise DataError(
                f"the program asked for no message: {every[0][0].failure}",
                where=f"rollouts.player = {self.settings.player!r}",
                fix="is it installed, and does it read OPENAI_BASE_URL or ANTHROPIC_BASE_URL?",
            )
        played = [rollout for rollouts in every for rollout in rollouts]
        add_counts(stats, played)
        return played

    def _bounded(self, settings: Sampling) -> Sampling:
        """The bounds of an episode, with those of the tasks."""
        wanted = [n for n in (settings.limits.max_turns, self.settings.repo.turns) if n]
        limits = replace(settings.limits, max_turns=min(wanted))
        return replace(settings, limits=limits)

    def _play(self, env: RepoEnv, record: EpisodeRecord, endpoint: Endpoint) -> list[Rollout]:
        endpoint.open(record)
        try:
            ended = self._run(env, record, socket=str(endpoint.socket))
        except EpisodeTreeError as error:
            ended = EndedProgram(output="", problem=str(error))
        finally:
            endpoint.close_episode(record)
        if not any(True for _ in record.replies):
            return [_lost(env, record, ended)]
        reward = 0.0 if ended.problem else env.reward()
        # a title that was asked for first is no conversation of the episode
        rollouts = sorted(
            played_rollouts(record, reward=reward), key=lambda r: r.session.outcome is None
        )
        session = rollouts[0].session
        remarks = remark_events(env.remarks(), turn=len(session.turns))
        first = replace(
            rollouts[0],
            session=replace(session, events=(*session.events, *remarks)),
            measures=env.measures(),
            failure=ended.problem or env.earned.reason,
        )
        return [first, *rollouts[1:]]

    def _run(self, env: RepoEnv, record: EpisodeRecord, *, socket: str) -> EndedProgram:
        """Run the program in a fresh tree, and hand what it left to the environment."""
        assignment = Assignment(
            task=env.task.statement,
            url=f"http://{HOST}:{_PORT}/e/{quote(record.name, safe='')}",
            home=HOME,
            context_tokens=record.settings.max_context_tokens,
            message_tokens=record.settings.max_new_tokens,
        )
        launch = launch_of(self.settings.player, assignment)
        program = program_files(launch.command)
        folders = [(str(Path(f).absolute()),) * 2 for f in self.settings.repo.program_folders]
        read_only = [*program.read_only, *folders, (socket, _SOCKET), (relay.__file__, _RELAY)]
        tree = env.playable.open_tree(env.task, limits=_LIMITS, read_only=read_only, loopback=True)
        with tree:
            language = language_named(env.task.language)
            root = env.playable.repository(env.task).checkout.import_root
            variables = language.variables(root)
            _place_commands(tree, language.commands, variables=variables)
            python = _found(tree, "python")  # the relay is a script of ours
            for path, text in launch.files.items():
                tree.write(str(HOME / path), text)
            words = [
                *("mkdir", "-p", str(HOME), "&&", "env"),
                *(word for name in variables for word in ("-u", name)),
                *(shlex.quote(f"{k}={v}") for k, v in launch.env.items() if k != "PATH"),
                shlex.quote(f"PATH={_TOOLS}:{Path(python).parent}:{PLAYER}/bin:/usr/bin"),
                *(python, "-I", "-S", _RELAY, relay.INSIDE, _SOCKET, str(_PORT)),
                *map(shlex.quote, program.command),
            ]
            done = tree.run(" ".join(words), limit_s=self.settings.repo.program_s)
            problem = f"the program was stopped after {self.settings.repo.program_s:.0f} s"
            if not done.late:
                problem = f"the program ended with exit code {done.code}" if done.code else ""
            if not problem:
                env.end(tree.changes(), list(_calls(record)))
        return EndedProgram(output=f"{done.out}\n{done.err}".strip()[-_SHOWN:], problem=problem)


def _writers(
    model: Any, chat_format: ChatFormat, settings: Sampling, *, version: int
) -> Iterator[Writer]:
    """A writer for each episode: each keeps the keys and values of its own conversations."""
    if isinstance(model, ServedModel):
        model.check()
        stop = chat_format.stop_ids(None)
        while True:
            yield ServedWriter(model, settings, stop)
    stop, lock = chat_format.stop_ids(model), threading.Lock()
    while True:
        yield LocalWriter(model, settings=settings, stop=stop, version=version, lock=lock)


def _place_commands(
    tree: EpisodeTree, commands: Mapping[str, str], *, variables: Mapping[str, str]
) -> None:
    """Put what runs and tests the repository first on the program's PATH, as it finds the code;
    the program itself must not."""
    settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    for name, command in commands.items():
        word, _, rest = command.partition(" ")
        start = f"#!/bin/sh\n{settings} exec {shlex.quote(_found(tree, word))} {rest}".rstrip()
        tree.write(f"{_TOOLS}/{name}", f'{start} "$@"\n')
    tree.run(f"chmod 755 {_TOOLS}/*")


def _found(tree: EpisodeTree, program: str) -> str:
    """Where the tree's own shell finds a program."""
    return tree.run(f"command -v {shlex.quote(program)}").out.strip()


def _calls(record: EpisodeRecord) -> Iterator[ToolCall]:
    """Every call of an episode; commands under the name that the monitor reads, whatever the
    program's tool is called."""
    for reply in record.replies:
        for call in (call for turn in reply.turns for call in turn.calls):
            command = call.arguments.get("command", call.arguments.get("cmd"))
            if command is None:
                yield call
                continue
            text = " ".join(map(str, command)) if isinstance(command, list) else str(command)
            yield replace(call, name="Bash", arguments={**call.arguments, "command": text})


def _lost(env: RepoEnv, record: EpisodeRecord, ended: EndedProgram) -> Rollout:
    """The rollout of an episode without a message of the student."""
    request = Turn(role="user", author=HUMAN, blocks=(Text(env.task.statement),))
    return Rollout(
        session=Session(
            id=record.name,
            source=SourceRef(file=env.task_id, format="rollout"),
            turns=(request,),
            segments=(Segment(start=0, end=1),),
            origin="student",
            outcome=0.0,
        ),
        task_id=env.task_id,
        ids=(),
        ended="env_error",
        num_cut=0,
        num_malformed=0,
        measures=env.measures(),
        version=record.writer.version,
        failure=f"{ended.problem} {ended.output}".strip() or "it ended without a word",
        episode=record.name,
    )
