"""Keys, lists and signatures for tests of trust."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

from coldstart.artifact import Header
from coldstart.trust.keys import generate
from coldstart.trust.signer import FileSigner, Seal
from coldstart.trust.verifier import Verifier

NOW = 1_800_000_000.0  # in January 2027
PRODUCER = "uid:7@host"


@dataclasses.dataclass
class Keys:
    """A signer called `one`, a file of trusted keys that holds it, a revocation list, and a clock."""

    folder: Path
    now: float = NOW

    def __post_init__(self) -> None:
        self.trusted, self.revoked = self.folder / "trusted", self.folder / "revoked"
        self.trusted.write_text(self.new("one").read_text())
        self.revoked.write_text("# nothing yet\n")

    def new(self, name: str) -> Path:
        """Another pair; its public half's file."""
        return generate(self.folder, name)[1]

    def seal(self, name: str = "one", **place: object) -> Seal:
        return Seal(FileSigner(self.folder / f"{name}.key"), unix_now=lambda: self.now, **place)

    async def sign(self, header: Header, name: str = "one", **place: object) -> Header:
        return await self.seal(name, **place).sign_header(header, PRODUCER)

    def signed(self, header: Header, name: str = "one", **place: object) -> Header:
        return asyncio.run(self.sign(header, name, **place))

    def verifier(self, **place: object) -> Verifier:
        return Verifier(
            self.trusted, self.revoked, unix_now=lambda: self.now, look_seconds=0.0, **place
        )
