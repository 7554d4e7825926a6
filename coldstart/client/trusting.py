"""Trusting: does this process load what its daemon offers? Where COLDSTART_TRUSTED_KEYS is set, only what is signed.

The daemon checks signatures too. This is for the case that the daemon is not to be trusted: a hit then carries the
signature, and it must be of one of the keys that this process's environment names, for its own namespace, about the
very header whose key, module digest and payload digest are compared with the program and the bytes. What a client can't
check: the generation, which it doesn't know, so that a daemon may offer it something signed before the last one was
begun; and that there is no later revocation than the file that it sees.
"""

from __future__ import annotations

from collections.abc import Callable

from coldstart.artifact import Header
from coldstart.config import ClientSettings
from coldstart.errors import ArtifactMismatch, ConfigError
from coldstart.outcomes import Reason

Check = Callable[[Header], object]  # raises ArtifactMismatch (reason `signature`)


def checker(settings: ClientSettings, warn: Callable[[str], None]) -> Check:
    """What a header with its signature has to pass before anything of it is loaded.

    Keys that can't be read are no reason to load what nobody vouches for: then nothing passes.

    Raises:
        ConfigError: in strict mode only, where the files can't be used.
    """
    if settings.trusted_keys is None:
        return _anything
    from coldstart.trust.verifier import Verifier  # its library takes a moment to import

    try:
        return Verifier(
            settings.trusted_keys,
            settings.revoked,
            namespace=settings.namespace,
            generation=None,
            trouble=warn,
        ).check_header
    except ConfigError as exc:
        if settings.strict:
            raise
        warn(f"{exc}; nothing is loaded from the cache")
        return _Nothing(str(exc))


def _anything(header: Header) -> None:
    """No keys: whoever the daemon believes is believed."""


class _Nothing:
    def __init__(self, why: str) -> None:
        self._why = why

    def __call__(self, header: Header) -> None:
        raise ArtifactMismatch(self._why, reason=Reason.SIGNATURE)
