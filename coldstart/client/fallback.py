"""How trouble travels: the cache's own ends in an ordinary compile, the compiler's is the caller's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coldstart.errors import (
    ArtifactError,
    ColdstartError,
    DaemonAbsent,
    DaemonError,
    DaemonTimeout,
    InvalidRequest,
    NotAllowed,
)
from coldstart.outcomes import Outcome, Reason


class FromCompiler(BaseException):
    """Carries what the compiler raised past every handler of ours, untouched."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()  # its text is the error's own matter: asking for it may fail
        self.error = error


class Fallback(Exception):
    """The cache can't help now; `error` is what strict mode raises."""

    def __init__(self, outcome: Outcome, reason: Reason, error: ColdstartError) -> None:
        super().__init__(str(error))
        self.outcome, self.reason, self.error = outcome, reason, error


def of_daemon(call: Callable[[], Any]) -> Any:
    """Run a call to the daemon; its failures become the fallback that they call for."""
    try:
        return call()
    except DaemonTimeout as exc:
        raise Fallback(Outcome.TIMEOUT, Reason.DEADLINE, exc) from exc
    except DaemonAbsent as exc:
        raise Fallback(Outcome.ERROR, Reason.DAEMON_ABSENT, exc) from exc
    except DaemonError as exc:
        raise Fallback(Outcome.ERROR, Reason.TIER_DOWN, exc) from exc
    except InvalidRequest as exc:
        raise Fallback(Outcome.ERROR, Reason.VERSION, exc) from exc
    except NotAllowed as exc:
        raise Fallback(Outcome.REFUSED, Reason.ROLE, exc) from exc
    except ArtifactError:
        raise
    except ColdstartError as exc:
        raise Fallback(Outcome.ERROR, Reason.TIER_DOWN, exc) from exc
