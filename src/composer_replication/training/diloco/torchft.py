"""torchft 0.2 as the engine of DiLoCo: replicas on one network, all-reduce over gloo, a Lighthouse.

    settings = TorchFTSettings(lighthouse=url, slot=0)
    with TorchFTDiLoCo(model, optimizer, settings=settings) as diloco:
        for batch in batches:
            ...; optimizer.step()      # every sync_every-th step ends with a round
            print(diloco.round, diloco.num_participants)

The default is the exchange over a store (exchange.py): no ports, durable, the same bits for any
number of replicas. torchft is for payloads of gigabytes on a fast network. What cost others a run
is refused here, or set so that it cannot happen:

- `init_sync` is off: on, torchft discards round 1 of every replica but one and counts the other's
  twice. So all must start from equal weights: their hash is part of a replica's id and is checked.
- Bucketization is off, and refused in the environment: 0.2.0 loses tensors in it without a word.
- `should_quantize` is off: without Triton it does nothing, silently.
- Only trainable weights are handed over: torchft would ship, and step, frozen ones too.
- Trainable weights must be float32: the outer step runs in their dtype, and bfloat16 loses most
  of a small one.
- At least two replicas make a quorum: a lone fresh one would become the global state.
- A second process with a slot is refused (torchft counts it as one more participant), replicas
  with other settings too, and a Lighthouse that restarts is waited for.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self, cast

import torch
from torch import nn

from composer_replication.core.errors import ConfigError, SlotTakenError
from composer_replication.training.diloco.blob_store import BlobStore
from composer_replication.training.diloco.executors.jobs import sdk
from composer_replication.training.diloco.flat_weights import FlatWeights, vector_sha256
from composer_replication.training.diloco.polling import Timing
from composer_replication.training.diloco.store_manager import ObjectStoreManager

_BUCKETS = "TORCHFT_USE_BUCKETIZATION"


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchFTSettings:
    """How a replica takes part; all but `slot` and `hostname` must be equal on all replicas.

    `lighthouse` is the URL of a torchft_lighthouse, `hostname` the name under which the others
    reach this machine. `quorum_timeout_s` must exceed the time between two rounds. A fragment is
    synced every `sync_every` steps, the fragments one after the other, `fragment_delay` steps after
    it was sent; `alpha` is the share of the local weights that it keeps.
    """

    slot: int
    lighthouse: str = ""
    sync_every: int = 20
    learning_rate: float = 0.7
    momentum: float = 0.9
    fragments: int = 1
    fragment_delay: int = 0
    alpha: float = 0.0
    min_replicas: int = 2
    hostname: str = "127.0.0.1"
    timeout_s: float = 60.0
    quorum_timeout_s: float = 3600.0
    quorum_retries: int = 50

    def agreed(self) -> str:
        """The hash of what all replicas must have in common."""
        names = ("sync_every", "learning_rate", "momentum", "fragments", "fragment_delay", "alpha")
        return hashlib.sha256(repr([getattr(self, name) for name in names]).encode()).hexdigest()


class _WrappedDiLoCo:
    """torchft's DiLoCo around a model's trainable weights; a subclass makes the manager."""

    def __init__(self, model: Any, optimizer: Any, *, settings: TorchFTSettings) -> None:
        self.settings = settings
        self._weights, self._optimizer = FlatWeights.of(model), optimizer
        check_masters(self._weights)
        fragments = fragments_of(self._weights, settings.fragments)
        self.manager = self._manager()
        outer = [
            torch.optim.SGD(
                fragment.parameters(),
                lr=settings.learning_rate,
                momentum=settings.momentum,
                nesterov=settings.momentum > 0,
            )
            for fragment in fragments
        ]
        self._diloco = sdk("torchft.local_sgd", package="torchft").DiLoCo(
            self.manager,
            fragments,
            optimizer,
            outer,
            sync_every=settings.sync_every,
            use_bucketization=False,
            should_quantize=False,
            fragment_sync_delay=settings.fragment_delay,
            fragment_update_alpha=settings.alpha,
        )

    @property
    def round(self) -> int:
        """How many rounds were committed."""
        return self.manager.current_step()

    @property
    def num_participants(self) -> int:
        """How many replicas took part in the last round."""
        return self.manager.num_participants()

    def __enter__(self) -> Self:
        self._diloco.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._diloco.__exit__(*error)
        self.manager.shutdown(wait=False)

    def _manager(self) -> Any:
        raise NotImplementedError

    def _load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take over another replica's weights; gradients at the old ones are dropped."""
        with torch.no_grad():
            for name, p in self._weights.named:
                p.copy_(state[name])
        self._optimizer.zero_grad(set_to_none=True)

    def _save(self) -> dict[str, torch.Tensor]:
        return {name: p.detach() for name, p in self._weights.named}


class TorchFTDiLoCo(_WrappedDiLoCo):
    """torchft's DiLoCo with its own manager: a Lighthouse and gloo."""

    def __init__(self, model: Any, optimizer: Any, *, settings: TorchFTSettings) -> None:
        """Connect to the Lighthouse; raises ConfigError for a setting that is not safe."""
        check_settings(settings, os.environ)
        super().__init__(model, optimizer, settings=settings)

    def _manager(self) -> Any:
        settings, torchft = self.settings, sdk("torchft", package="torchft")
        timeout = timedelta(seconds=settings.timeout_s)
        self._store = sdk("torch.distributed", package="torchft").TCPStore(
            settings.hostname, 0, is_master=True, wait_for_workers=False
        )
        manager = torchft.Manager(
            pg=torchft.ProcessGroupGloo(timeout=timeout),
            load_state_dict=self._load,
            state_dict=self._save,
            min_replica_size=settings.min_replicas,
            use_async_quorum=False,
            init_sync=False,
            quorum_retries=settings.quorum_retries,
            timeout=timeout,
            quorum_timeout=timedelta(seconds=settings.quorum_timeout_s),
            replica_id=replica_id(settings, vector_sha256(self._weights.read())),
            rank=0,
            world_size=1,
            store_addr=settings.hostname,
            store_port=self._store.port,
            lighthouse_addr=settings.lighthouse,
            hostname=settings.hostname,
            checkpoint_transport=_transport(settings.hostname, timeout),
        )
        full_id = manager._store.get("replica_id").decode()  # with the uuid that torchft appends
        manager._client = _CheckedClient(manager._client, full_id)
        return manager


class StoreDiLoCo(_WrappedDiLoCo):
    """torchft's DiLoCo (fragments, delay, alpha) over a folder or bucket, without a Lighthouse.

    with StoreDiLoCo(model, optimizer, settings=settings, store=open_store(url)) as diloco: ...
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        *,
        settings: TorchFTSettings,
        store: BlobStore,
        replicas: int = 1,
        takeover: bool = False,
        timing: Timing | None = None,
    ) -> None:
        """`replicas`: that the first round waits for; `takeover`: the slot's holder is dead."""
        check_settings(settings, {})
        self._options = {"replicas": replicas, "takeover": takeover, "timing": timing}
        self._blobs = store
        super().__init__(model, optimizer, settings=settings)
        self.manager.start()

    def _manager(self) -> ObjectStoreManager:
        return ObjectStoreManager(
            self._blobs,
            slot=self.settings.slot,
            quorum=self.settings.min_replicas,
            agreed={
                "settings": self.settings.agreed(),
                "start": vector_sha256(self._weights.read()),
            },
            load_state_dict=self._load,
            state_dict=self._save,
            **self._options,
        )


class _CheckedClient:
    """torchft's client of its own manager server, which looks at who is in a quorum."""

    def __init__(self, client: Any, full_id: str) -> None:
        self._client, self._full_id = client, full_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def _quorum(self, **options: Any) -> Any:
        quorum = self._client._quorum(**options)
        check_quorum(quorum.replica_ids, mine=self._full_id, heal=quorum.heal, step=quorum.max_step)
        return quorum


def replica_id(settings: TorchFTSettings, weights_sha256: str) -> str:
    """A replica's id: the hashes of what must be equal, and its slot as trailing digits.

    >>> replica_id(TorchFTSettings(lighthouse="", slot=3), "abcdef0123")[-16:]
    '-abcdef01-slot-3'
    """
    return f"recompose-{settings.agreed()[:8]}-{weights_sha256[:8]}-slot-{settings.slot}"


def check_quorum(replica_ids: Sequence[str], *, mine: str, heal: bool, step: int) -> None:
    """Refuse a quorum with other settings, other start weights or this slot twice.

    torchft appends ":uuid" to each id. Of two processes with one slot the one that has to be healed
    came later and leaves; before the first round the one whose uuid sorts last.
    """
    name, _, uuid = mine.partition(":")
    _, agreed, weights, _, slot = name.split("-")
    for other in replica_ids:
        their_name, _, their_uuid = other.partition(":")
        _, their_agreed, their_weights, _, their_slot = their_name.split("-")
        if their_agreed != agreed:
            raise ConfigError(
                f"slot {their_slot} runs with other settings of DiLoCo than slot {slot}",
                fix="give all replicas the same settings, or each run a Lighthouse of its own",
            )
        if step == 0 and their_weights != weights:
            raise ConfigError(
                f"slot {their_slot} starts from other weights than slot {slot}",
                fix="start all replicas from the same checkpoint; later ones are healed",
            )
        if (
            their_slot == slot
            and their_uuid != uuid
            and (heal or (step == 0 and uuid > their_uuid))
        ):
            raise SlotTakenError(
                f"slot {slot} is held by another process ({their_uuid[:8]})",
                fix="give each replica a slot of its own",
            )


def check_settings(settings: TorchFTSettings, env: Mapping[str, str]) -> None:
    """Refuse what would lose or double data without a word."""
    if settings.min_replicas < 2:
        raise ConfigError(
            f"min_replicas = {settings.min_replicas}: a lone fresh replica would become the state"
            " of all",
            fix="use 2 or more; one replica alone needs no DiLoCo",
        )
    if env.get(_BUCKETS, "False") == "True":
        raise ConfigError(
            "torchft 0.2 loses tensors when it packs them into buckets",
            where=_BUCKETS,
            fix="unset it",
        )
    if settings.quorum_retries < 1:
        raise ConfigError(
            "quorum_retries = 0: every replica would exit if the Lighthouse restarts",
            fix="use 1 or more",
        )
    if settings.slot < 0 or settings.sync_every < 1:
        raise ConfigError(
            f"slot = {settings.slot}, sync_every = {settings.sync_every}",
            fix="slots begin at 0, and a round has at least one step",
        )
    share = settings.sync_every // max(1, settings.fragments)
    if settings.fragments < 1 or settings.sync_every % settings.fragments:
        raise ConfigError(
            f"{settings.fragments} fragments in {settings.sync_every} steps",
            fix="sync_every must be a multiple of fragments",
        )
    if not 0 <= settings.alpha <= 1:
        raise ConfigError(f"alpha = {settings.alpha}", fix="use a share between 0 and 1")
    if not 0 <= settings.fragment_delay < share:
        raise ConfigError(
            f"fragment_delay = {settings.fragment_delay}, but fragments are {share} steps apart",
            fix="use a smaller delay",
        )


def check_masters(weights: FlatWeights) -> None:
    """Refuse trainable weights that are not float32: the outer step would be rounded away."""
    rounded = [name for name, p in weights.named if p.dtype != torch.float32]
    if rounded:
        raise ConfigError(
            f"{len(rounded)} trainable weights are not float32, e.g. {rounded[0]}",
            where="torchft",
            fix="load the student in float32, train an adapter in float32, or sync over a store"
            " (it keeps float32 masters)",
        )


def fragments_of(weights: FlatWeights, num: int) -> list[nn.Module]:
    """The trainable weights in `num` modules of about equal size, in their order, and nothing
    else.

    >>> weights = FlatWeights.of(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    >>> [len(list(part.parameters())) for part in fragments_of(weights, 2)]
    [2, 2]
    """
    if num > len(weights.named):
        raise ConfigError(f"{num} fragments of {len(weights.named)} weights", fix="use fewer")
    modules: list[nn.Module] = [nn.Module() for _ in range(num)]
    before = 0
    for position, (name, p) in enumerate(weights.named):
        by_size = before * num // weights.num_weights
        left = len(weights.named) - position  # no module may stay empty
        index = max(min(by_size, position), num - left)
        # `named` holds parameters
        modules[index].register_parameter(name.replace(".", "__"), cast(nn.Parameter, p))
        before += p.numel()
    return modules


def _transport(hostname: str, timeout: timedelta) -> Any:
    """torchft's HTTP transport of weights to a replica that heals, under the given host name: its
    own takes the machine's, which others may not resolve."""
    http_transport = sdk("torchft.checkpointing.http_transport", package="torchft")

    class _NamedTransport(http_transport.HTTPTransport):
        def address(self) -> str:
            port = self._server.socket.getsockname()[1]
            return f"http://{hostname}:{port}/checkpoint/"

    return _NamedTransport(timeout=timeout, num_chunks=0)
