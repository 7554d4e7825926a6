"""What a planner asks a daemon without compiling: the state of many keys at once, and the end of a dead one's lease."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from coldstart import wire
from coldstart.client import host
from coldstart.client.client import CacheClient
from coldstart.errors import LeaseLost
from coldstart.outcomes import Reason
from coldstart.rpc.v1 import cache_pb2 as pb
from coldstart.wire import KeyState

__all__ = ["KeyState", "Standing", "report_crash", "standings"]

MOST_KEYS = 10_000  # of one call; the daemon takes twice as many
BATCH_SECONDS = 60.0  # a cold store with slow tiers


@dataclass(frozen=True, slots=True)
class Standing:
    """One key as the daemon sees it, for this host."""

    key: str
    state: KeyState
    digest: str = ""  # where present
    compile_seconds: float = 0.0  # where present: what the compile took whoever made it


def standings(client: CacheClient, keys: Sequence[str]) -> dict[str, Standing]:
    """The state of each key. Takes no lease, loads nothing. A plan names them: small ones are shared by that.

    Raises:
        DaemonError: the daemon can't say.
    """
    found: dict[str, Standing] = {}
    about = pb.Host(cpu_features=host.cpu_features(), planned=True)
    for start in range(0, len(keys), MOST_KEYS):
        request = pb.BatchRequest(keys=keys[start : start + MOST_KEYS], host=about)
        for answer in client.batch(request, BATCH_SECONDS).answers:
            found[answer.key] = Standing(
                answer.key,
                wire.key_state_from_pb(answer.state),
                answer.digest,
                answer.compile_seconds,
            )
    return found


def report_crash(client: CacheClient, lease_id: str, message: str) -> None:
    """Tell a lease's waiters that the compile took its process down."""
    kind = wire.reason_to_pb(Reason.NEGATIVE_CRASH)
    with suppress(LeaseLost):
        client.fail(pb.FailRequest(lease_id=lease_id, kind=kind, message=message[:2000]))
