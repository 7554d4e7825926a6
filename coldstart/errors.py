"""The whole exception tree, and the gRPC status each crosses the wire as.

    ColdstartError
      InvalidRequest         INVALID_ARGUMENT      the caller can fix it
        InvalidDescriptor    INVALID_ARGUMENT      a graph descriptor that is not well formed
        TooLarge             INVALID_ARGUMENT      never fits; retrying won't help
        UnknownCall          UNIMPLEMENTED         client side only: a daemon of a release without that call
      ArtifactError
        ArtifactCorrupt      DATA_LOSS             digest or format wrong: drop it, count it, compile
        ArtifactMismatch     FAILED_PRECONDITION   sound, but for another key, target or host
      TierError              UNAVAILABLE           names the tier
        TierTimeout          DEADLINE_EXCEEDED     silence; never the same as "not found"
        TierFull             RESOURCE_EXHAUSTED    full now; a retry may help
        TierNotReady         UNAVAILABLE           just started: nothing against the tier yet
        BreakerOpen          UNAVAILABLE           failed so often that it isn't asked for a while
      NotAllowed             PERMISSION_DENIED     this peer, or this daemon, may not do that
      LeaseLost              ABORTED               somebody else may compile this key now
      DaemonError            UNAVAILABLE           client side only: the daemon can't be used
        DaemonAbsent                               nothing listens at the address
        DaemonTimeout                              it listens and does not answer
      CompileFailed          INTERNAL              warm-up: program, bucket, target, the compiler's words
      ConfigError            (never on the wire)   names the setting and a value that would work

A miss is an answer, never an exception. Every class says its own status, so that the server's interceptor
and the client translate in one place each.
"""

from __future__ import annotations

from typing import ClassVar


class ColdstartError(Exception):
    """Root of everything Coldstart raises on purpose."""

    status: ClassVar[str] = "INTERNAL"


class InvalidRequest(ColdstartError):
    """The caller sent something that can't be right; the message says what to change."""

    status = "INVALID_ARGUMENT"


class InvalidDescriptor(InvalidRequest):
    """A graph descriptor that breaks the rules of descriptor.proto."""


class TooLarge(InvalidRequest):
    """An artifact that is larger than this tier ever takes."""


class UnknownCall(InvalidRequest):
    """The daemon is there, and of a release that doesn't have this call."""

    status = "UNIMPLEMENTED"


class ArtifactError(ColdstartError):
    """Something about one artifact's bytes; `reason` is a word of `outcomes.Reason`."""

    def __init__(self, message: str, *, reason: str = "corrupt") -> None:
        super().__init__(message)
        self.reason = reason


class ArtifactCorrupt(ArtifactError):
    """Digest, header hash or format wrong."""

    status = "DATA_LOSS"


class ArtifactMismatch(ArtifactError):
    """A sound artifact that this reader must not load."""

    status = "FAILED_PRECONDITION"


class TierError(ColdstartError):
    """A tier could not do it; not knowing is not a miss.

    The message always names the tier and what was tried. `partial`: it was one of several, and another, which can be
    written, did answer: whoever asks can go on with that one. `lasting`: the tier works, and will say the same again.
    """

    status = "UNAVAILABLE"
    partial = False
    lasting = False


class TierTimeout(TierError):
    """A tier did not answer in time."""

    status = "DEADLINE_EXCEEDED"


class TierFull(TierError):
    """No room now; eviction or an operator may make some."""

    status = "RESOURCE_EXHAUSTED"


class TierNotReady(TierError):
    """Just started, and its credentials are not there yet. No breaker counts it."""


class BreakerOpen(TierError):
    """Not asked: it failed too often lately. It is tried again in the background."""


class NotAllowed(ColdstartError):
    """Asked by somebody who may not, or of a daemon that may not."""

    status = "PERMISSION_DENIED"


class LeaseLost(ColdstartError):
    """The lease expired or went to another holder. Costs a duplicate compile, never a wrong artifact."""

    status = "ABORTED"


class DaemonError(ColdstartError):
    """The daemon can't be used now; a client then compiles by itself."""

    status = "UNAVAILABLE"


class DaemonAbsent(DaemonError):
    """Nothing listens at the address."""


class DaemonTimeout(DaemonError):
    """It listens and does not answer."""


class CompileFailed(ColdstartError):
    """A compile that the compiler refused; `kind` is oom, timeout, crash or compile."""

    def __init__(self, message: str, *, kind: str = "compile") -> None:
        super().__init__(message)
        self.kind = kind


class ConfigError(ColdstartError):
    """A setting that can't be used: names it, and a value that would work. CLI exit code 2."""
