"""Boards: which lease board a daemon keeps, by its `leases` setting and its stores.

    auto    the first of its stores that daemons share and that may be written: redis first, then gs; else local
    local   leases among this daemon's clients
    redis, gcs   that one; ConfigError where no such store is there to be written

A board of the fleet is always backed by a local one (lease/fleet.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from coldstart.errors import ConfigError
from coldstart.lease.board import LeaseBoard, MemoryLeaseBoard
from coldstart.lease.fleet import FleetLeaseBoard
from coldstart.store.gcs_url import GcsStore
from coldstart.store.recorder import Recorder
from coldstart.store.redis_url import RedisStore
from coldstart.store.tier import Tier
from coldstart.store.urls import parse_store, placed, redis_of
from coldstart.store.within import within

KINDS: Mapping[str, type] = {"redis": RedisStore, "gcs": GcsStore}


def open_board(
    leases: str,
    urls: Sequence[str],
    chain: Tier,
    recorder: Recorder,
    on_change: Callable[[str], None],
    *,
    namespace: str = "",
    generation: int = 0,
) -> tuple[str, LeaseBoard]:
    """Its kind (`local`, `redis` or `gcs`) and the board, for an event loop that runs.

    Args:
        on_change: told why leases are this daemon's alone from now on, and "" when they are the fleet's again.

    Raises:
        ConfigError: `leases` names a kind that no store of `urls` can keep.
    """
    stores = [placed(parse_store(url), namespace, generation) for url in urls]
    for kind, store_type in KINDS.items():
        if leases not in ("auto", kind):
            continue
        for store in stores:
            if isinstance(store, store_type) and getattr(store, "write", False):
                fleet = _fleet_board(store, chain, recorder)
                return kind, FleetLeaseBoard(fleet, MemoryLeaseBoard(), on_change=on_change)
    if leases in KINDS:
        scheme = "gs" if leases == "gcs" else leases
        raise ConfigError(
            f"leases={leases} needs a {scheme}:// store that may be written; add one, or set leases=auto"
        )
    return "local", MemoryLeaseBoard()


def _fleet_board(store: object, chain: Tier, recorder: Recorder) -> LeaseBoard:
    if isinstance(store, GcsStore):
        from coldstart.lease.gcs import GcsLeaseBoard

        # The tier's own: when one of them finds that it is silent, the other needn't.
        bucket = next(
            tier.bucket
            for tier in within(chain)
            if tier.name == "gcs" and hasattr(tier, "bucket") and tier.bucket.name == store.bucket
        )
        return GcsLeaseBoard(bucket, store.prefix)
    from coldstart.lease.redis import RedisLeaseBoard

    tier = redis_of(chain)
    assert tier is not None  # opened from the same URLs
    return RedisLeaseBoard(tier.link)
