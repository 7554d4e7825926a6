"""Roles: who may do what with a daemon. Pure: an identity's words in, a role out.

    uid:1000     a process of that user, on the Unix socket (the kernel said so)
    unix         anybody who can open the Unix socket
    tls:NAME     who showed a certificate that our authority signed for NAME (a DNS name, a URI or the common name)
    token:NAME   who sent that token
    anyone       anybody who can reach a plain TCP address

A reader looks up and loads; a writer publishes too, which is running code in every reader; an admin also removes what
is stored. With no list at all, whoever can open the Unix socket is an admin: the socket's permissions are the list.
Everybody else reads, unless `readers` says who.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum

UNIX = "unix"
ANYONE = "anyone"


class Role(IntEnum):
    """Each may do what those before it may."""

    NONE = 0
    READER = 1
    WRITER = 2
    ADMIN = 3


@dataclass(frozen=True, slots=True)
class Peer:
    """Who calls, and what it may do."""

    identity: str  # the first of its names: what signatures and the audit say
    role: Role

    @property
    def only_reads(self) -> str:
        """Why it may not publish; "": it may."""
        if self.role >= Role.WRITER:
            return ""
        return f"{self.identity} is no writer here; the daemon's setting `writers` says who is"


@dataclass(frozen=True, slots=True)
class Roles:
    """A daemon's lists."""

    readers: frozenset[str] = frozenset()
    writers: frozenset[str] = frozenset()
    admins: frozenset[str] = frozenset()

    @property
    def listed(self) -> bool:
        """Whether there is any list."""
        return bool(self.readers or self.writers or self.admins)

    def peer(self, names: Collection[str]) -> Peer:
        """Who has these names, of which the first is the one to call it by. It may what any of them may."""
        first = next(iter(names))
        return Peer(first, max(self._of(name) for name in names))

    def _of(self, name: str) -> Role:
        if name in self.admins:
            return Role.ADMIN
        if name in self.writers:
            return Role.WRITER
        if name in self.readers:
            return Role.READER
        if name == UNIX and not self.listed:
            return Role.ADMIN
        return Role.NONE if self.readers else Role.READER
