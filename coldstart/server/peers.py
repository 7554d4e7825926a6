"""Peers: who makes a call, from what the transport says of it; and which role each call takes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from coldstart.config import DaemonConfig
from coldstart.errors import ConfigError, NotAllowed
from coldstart.server.audit import Audit
from coldstart.server.passes import Passes
from coldstart.trust.roles import ANYONE, UNIX, Peer, Role, Roles
from coldstart.trust.watched import Watched

PASS = "coldstart-pass"
AUTHORIZATION = "authorization"
BEARER = "Bearer "
NAMES = ("x509_subject_alternative_name", "x509_common_name")
WRITING = ("Publish", "Upload", "Renew", "Release", "Fail")
REMOVING = ("Purge", "Verify", "Tidy")  # verify puts aside what is bad
OURS = "/coldstart.rpc."  # health and reflection are for everybody


class Peers:
    """Who calls one daemon."""

    def __init__(
        self, roles: Roles, audit: Audit, tokens: Watched[Mapping[str, str]] | None
    ) -> None:
        self.roles = roles
        self.passes: Passes | None = None  # set where the Unix socket has a door
        self._audit = audit
        self._tokens = tokens
        # The call that is being answered, and who makes it: asked for twice, by the edge and by the call itself.
        self._caller: ContextVar[tuple[Any, Peer] | None] = ContextVar("caller", default=None)

    def of(self, context: Any) -> Peer:
        """Who makes this call.

        Raises:
            NotAllowed: it names itself by a token that nobody has.
        """
        known = self._caller.get()
        if known is not None and known[0] is context:
            return known[1]
        peer = self._found(context)
        self._caller.set((context, peer))
        return peer

    def _found(self, context: Any) -> Peer:
        metadata = {name: value for name, value in context.invocation_metadata() or ()}
        if str(context.peer()).startswith("unix:"):
            uid = self.passes.uid(str(metadata.get(PASS, ""))) if self.passes is not None else None
            return self.roles.peer([UNIX] if uid is None else [f"uid:{uid}", UNIX])
        names = [*self._certified(context), *self._by_token(metadata)]
        return self.roles.peer(names or [ANYONE])

    def check(self, method: str, context: Any) -> None:
        """Raises NotAllowed where the caller may not make this call. `method` is the whole name on the wire."""
        if not method.startswith(OURS):
            return
        call = method.rpartition("/")[2]
        peer = self.of(context)
        wanted = Role.WRITER if call in WRITING else Role.READER
        wanted = Role.ADMIN if call in REMOVING else wanted
        if peer.role >= wanted:
            return
        word = wanted.name.lower()
        why = f"{call} takes the role {word}; {peer.identity} has {peer.role.name.lower()}"
        self._audit.denied(peer.identity, call, why)
        raise NotAllowed(f"{why}; the daemon's setting `{word}s` says who may")

    def _certified(self, context: Any) -> list[str]:
        said = context.auth_context() or {}
        return [
            f"tls:{value.decode(errors='replace')}"
            for name in NAMES
            for value in said.get(name, ())
        ]

    def _by_token(self, metadata: Mapping[str, Any]) -> list[str]:
        given = str(metadata.get(AUTHORIZATION, ""))
        if not given:
            return []
        known = {} if self._tokens is None else self._tokens.get()
        digest = hashlib.sha256(given.removeprefix(BEARER).encode()).hexdigest()
        if digest not in known:
            self._audit.denied("somebody", "token", "a token that isn't known")
            raise NotAllowed("the token is not known here; is COLDSTART_TOKEN_FILE the right one?")
        return [f"token:{known[digest]}"]


def open_peers(config: DaemonConfig, audit: Audit) -> Peers:
    """By the settings. Raises ConfigError, which names the one to fix."""
    roles = Roles(frozenset(config.readers), frozenset(config.writers), frozenset(config.admins))
    tokens = None
    if config.tokens is not None:
        tokens = Watched(config.tokens, read_tokens, trouble=audit.trouble)
    return Peers(roles, audit, tokens)


def read_tokens(path: Path) -> Mapping[str, str]:
    """sha256 of each token -> its name. Lines of `NAME SHA256`. Raises ConfigError."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"tokens={path}: {exc}; name a file that can be read") from exc
    known: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2 or re.fullmatch(r"[0-9a-f]{64}", words[1]) is None:
            raise ConfigError(
                f"tokens={path}: line {number} is not `NAME SHA256`; the latter is of the token, in hex digits: "
                "printf %s TOKEN | sha256sum"
            )
        known[words[1]] = words[0]
    return known
