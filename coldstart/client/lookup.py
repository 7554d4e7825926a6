"""Lookup: one compile request on its way through the cache, and what is asked about it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from coldstart import wire, wire_descriptor
from coldstart.client import host
from coldstart.client.identify import Identity
from coldstart.identity.descriptor import GraphDescriptor
from coldstart.outcomes import Outcome, Reason
from coldstart.rpc.v1 import cache_pb2 as pb


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer of the daemon, for a caller that plans around waits and refusals (warm-up)."""

    kind: str  # hit, lease, wait or refused
    key: str = ""  # of what was asked for, after rewrites
    lease_id: str = ""
    reason: Reason | None = None  # of a refusal
    message: str = ""


@dataclass(slots=True)
class Lookup:
    """One compile request on its way. Seconds add up to what Finish says."""

    program_name: str
    platform: str
    planned: bool
    load: bool
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    began: float = field(default_factory=time.monotonic)
    waited: bool = False
    answered: Callable[[Answered], None] | None = None  # told of every answer before it is acted on
    trouble: Reason | None = (
        None  # the first bad copy's reason: then a compile is an error, not a miss
    )
    unpublishable: bool = False  # what was compiled is not the module that the key names
    identified: Identity | None = None  # None: not yet, or it can't be
    raw_digest: str = ""  # that the daemon was asked by; "": by none
    described: bool = False  # the daemon has its descriptor, or wanted none
    seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(
            ("identify", "wait", "fetch", "load", "compile", "saved"), 0.0
        )
    )

    @property
    def identity(self) -> Identity:
        """What it is asked for by. Only once it is identified."""
        if self.identified is None:
            raise ValueError(f"{self.program_name} is not identified yet")
        return self.identified

    def tell(self, reply: pb.LookupReply) -> None:
        """Hand an answer to whoever wants to know."""
        if self.answered is None:
            return
        kind = str(reply.WhichOneof("answer"))
        if kind == "refused":
            reason = wire.reason_from_pb(reply.refused.reason)
            self.answered(Answered(kind, reply.key, reason=reason, message=reply.refused.message))
        else:
            self.answered(Answered(kind, reply.key, lease_id=reply.lease.lease_id))

    def question(
        self,
        *,
        namespace: str,
        mode: wire.Mode,
        volume_proof: bytes,
        raw_digest: str = "",
        may_hit: bool = False,
        descriptor: GraphDescriptor | None = None,
    ) -> pb.LookupRequest:
        """A Lookup call: by raw digest, by descriptor, else by this request's key record.

        Args:
            may_hit: what this very program came to before may be answered at once; with a raw digest.
        """
        request = pb.LookupRequest(
            lookup_id=self.id,
            namespace=namespace,
            host=pb.Host(
                cpu_features=host.cpu_features() if self.platform == "cpu" else (),
                volume_proof=volume_proof,
                mode=wire.mode_to_pb(mode),
                planned=self.planned,
            ),
            holder=host.holder(),
        )
        if raw_digest:
            request.raw_digest = raw_digest
            request.may_hit = may_hit
        elif descriptor is not None:
            request.descriptor = wire_descriptor.descriptor_to_pb(descriptor).SerializeToString()
        else:
            request.record.CopyFrom(wire.record_to_pb(self.identity.record))
        return request

    def hit_reason(self, hit: pb.Hit) -> Reason:
        return Reason.WAITED if self.waited or hit.waited else Reason.OK

    def ending(self, outcome: Outcome, reason: Reason, tier: str) -> pb.FinishRequest:
        """The Finish call that counts this lookup."""
        seconds = self.seconds
        return pb.FinishRequest(
            lookup_id=self.id,
            key=self.identified.key if self.identified is not None else "",
            outcome=wire.outcome_to_pb(outcome),
            reason=wire.reason_to_pb(reason),
            tier=tier,
            program_name=self.program_name,
            compile_seconds=seconds["saved"] if outcome is Outcome.HIT else seconds["compile"],
            fetch_seconds=seconds["fetch"],
            load_seconds=seconds["load"],
            identify_seconds=seconds["identify"],
            wait_seconds=seconds["wait"],
        )
