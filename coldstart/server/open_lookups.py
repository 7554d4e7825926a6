"""OpenLookups: the lookups that have not ended, and the ids of those that have. Bounded, on one event loop."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from coldstart.errors import InvalidRequest
from coldstart.outcomes import Reason
from coldstart.server.answers import Asker, Hit
from coldstart.store.names import check_key

MAX_OPEN = 20_000  # the one that was silent longest gives way
MAX_FINISHED = 50_000  # ids that were counted and are not counted again
MAX_ID_CHARS = 128
MAX_FEATURES = 2048


@dataclass(slots=True)
class OpenLookup:
    """What the daemon remembers of a lookup until it ends."""

    asker: Asker
    last_seen: float
    raw_digest: str = ""  # that it was first asked by, where it was
    by_alias: bool = False  # `key` is what the raw digest came to before; the asker didn't say so
    key: str = ""
    lease_id: str = ""
    lost: bool = False  # held a lease that expired
    waited: bool = False
    looked_at: int = (
        0  # how many artifacts had been published here when its key was looked for last
    )
    damage: Reason | None = None  # what was wrong with a copy that the store found bad
    served: dict[str, Hit] = field(default_factory=dict)  # by digest; the latest is last
    rejected: Counter[str] = field(default_factory=Counter)  # digests that this client found bad
    excluded: set[str] = field(default_factory=set)  # digests that this host can't use
    pins: dict[str, str] = field(default_factory=dict)  # digest -> pin


class OpenLookups:
    """By id, least recently heard of first."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._open: OrderedDict[str, OpenLookup] = OrderedDict()
        self._finished: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, asker: Asker) -> OpenLookup:
        """The lookup of that id, opened now if it wasn't. Call `overflow` after.

        Raises:
            InvalidRequest: not an id, or the id of a lookup that has ended.
        """
        _check_asker(asker)
        if asker.lookup_id in self._finished:
            raise InvalidRequest(
                f"lookup {asker.lookup_id!r} has ended; a new compile request takes a new lookup id"
            )
        lookup = self._open.get(asker.lookup_id)
        if lookup is None:
            lookup = self._open[asker.lookup_id] = OpenLookup(asker, self._now())
        lookup.asker = asker
        self.touch(lookup)
        return lookup

    def overflow(self) -> OpenLookup | None:
        """One that must give way, if there are too many; not taken out yet."""
        return next(iter(self._open.values())) if len(self._open) > MAX_OPEN else None

    def get(self, lookup_id: str) -> OpenLookup | None:
        return self._open.get(lookup_id)

    def of_key(self, lookup_id: str, key: str) -> OpenLookup:
        """The open lookup of that id, which must have asked for `key`. Raises InvalidRequest."""
        check_lookup_id(lookup_id)
        check_key(key)
        lookup = self._open.get(lookup_id)
        if lookup is None or lookup.key != key:
            raise InvalidRequest(
                "no such lookup is open for this key (was the daemon restarted?); start again with Lookup"
            )
        self.touch(lookup)
        return lookup

    def touch(self, lookup: OpenLookup) -> None:
        """It was heard of just now."""
        lookup.last_seen = self._now()
        if lookup.asker.lookup_id in self._open:
            self._open.move_to_end(lookup.asker.lookup_id)

    def end(self, lookup_id: str) -> tuple[bool, OpenLookup | None]:
        """Take it out. False: it had ended before; (True, None): it was never heard of."""
        if lookup_id in self._finished:
            return False, None
        self._finished[lookup_id] = None
        while len(self._finished) > MAX_FINISHED:
            self._finished.popitem(last=False)
        return True, self._open.pop(lookup_id, None)

    def silent(self, patience: Callable[[OpenLookup], float]) -> list[OpenLookup]:
        """Those that were not heard of for longer than `patience` says."""
        now = self._now()
        return [one for one in self._open.values() if now - one.last_seen > patience(one)]


def _check_asker(asker: Asker) -> None:
    """What is kept for as long as a lookup is open is small, or 20 000 of them would fill the memory."""
    check_lookup_id(asker.lookup_id)
    if len(asker.namespace) > MAX_ID_CHARS:
        raise InvalidRequest(f"a namespace has at most {MAX_ID_CHARS} characters")
    if len(asker.cpu_features) > MAX_FEATURES or any(
        len(feature) > MAX_ID_CHARS for feature in asker.cpu_features
    ):
        raise InvalidRequest(
            f"a host has at most {MAX_FEATURES} CPU features of {MAX_ID_CHARS} characters each"
        )


def check_lookup_id(lookup_id: str) -> None:
    if not 1 <= len(lookup_id) <= MAX_ID_CHARS or not lookup_id.isprintable():
        raise InvalidRequest(
            f"lookup_id is 1 to {MAX_ID_CHARS} printable characters, chosen by the client"
        )
