"""What a lookup asks and what it can be answered, as plain data. The servicer translates; `Lookups` decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from coldstart.artifact import Header
from coldstart.identity.final import Described
from coldstart.identity.key import KeyRecord
from coldstart.identity.rewrite import Rewrite
from coldstart.outcomes import Reason
from coldstart.server.frames import Job
from coldstart.wire import KeyState, Mode


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks, and what is true of its process."""

    lookup_id: str
    holder: str = ""  # for people and for whoever waits for it
    namespace: str = ""
    cpu_features: frozenset[str] = frozenset()  # which variant it can load
    sees_volume: bool = False  # proved with the nonce: may be handed a path
    mode: Mode = Mode.CANONICAL
    planned: bool = False  # an entry of a plan: size doesn't matter
    estimate_seconds: float = 0.0  # how long it thinks that the compile takes
    only_reads: str = ""  # why it may not publish; "": it may


@dataclass(frozen=True, slots=True)
class Canonicalized:
    """What became of one descriptor."""

    rewrites: tuple[Rewrite, ...] = ()
    kept: bytes = b""  # zlib of the descriptor, to explain it later; empty: too large
    abandoned: str = ""  # why there is no answer, in words; the program is compiled as it is
    reason: Reason = (
        Reason.UNSHAREABLE
    )  # the word for that, where nothing can be shared without an answer
    final: Described | None = None  # of a final descriptor


class Canonicalize(Protocol):
    """A serialized GraphDescriptor -> its rewrites. The seam where canonicalization is plugged in."""

    async def __call__(self, descriptor: bytes, job: Job = Job.REWRITES) -> Canonicalized:
        """Raises InvalidDescriptor."""
        ...

    def warm(self) -> None:
        """A descriptor is on its way."""
        ...


class NoRewrites:
    """Every program is compiled as it is."""

    async def __call__(self, descriptor: bytes, job: Job = Job.REWRITES) -> Canonicalized:
        if job is Job.REWRITES:
            return Canonicalized()
        return Canonicalized(abandoned="this daemon has nothing that looks at descriptors")

    def warm(self) -> None:
        """Nothing to get ready."""


@dataclass(frozen=True, slots=True)
class NeedDescriptor:
    """The raw digest is not known."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """Apply these, then ask with the key record."""

    rewrites: tuple[Rewrite, ...]


@dataclass(frozen=True, slots=True)
class Hit:
    """There is an artifact that this host can load."""

    key: str
    header: Header
    tier: str
    path: str = ""  # relative to the volume's root; empty: fetch it
    waited: bool = False
    record: KeyRecord | None = None  # asked by raw digest: what the program came to


@dataclass(frozen=True, slots=True)
class Leased:
    """The asker compiles."""

    key: str
    lease_id: str
    seconds: float
    reason: Reason = Reason.COLD  # why it is a miss


@dataclass(frozen=True, slots=True)
class Waiting:
    """Somebody else compiles."""

    key: str
    holder: str
    estimate_seconds: float
    max_wait_seconds: float


@dataclass(frozen=True, slots=True)
class Refused:
    """Compile by yourself; nobody waits for it."""

    reason: Reason
    message: str
    key: str = ""


Answer = NeedDescriptor | Rewritten | Hit | Leased | Waiting | Refused


@dataclass(frozen=True, slots=True)
class FinalAnswer:
    """What a final program is answered: as a key record is, and what its key was made of."""

    answer: Answer
    record: KeyRecord | None = None  # None: no key could be made
    rewrites: tuple[Rewrite, ...] = ()  # what is compiled is the program with these made


@dataclass(frozen=True, slots=True)
class KeyAnswer:
    """One key of a batch."""

    key: str
    state: KeyState
    digest: str = ""
    compile_seconds: float = 0.0


def least(one: Mode, other: Mode) -> Mode:
    """The more careful of two modes."""
    order = list(Mode)
    return min(one, other, key=order.index)
