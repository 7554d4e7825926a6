"""Volume: files that a daemon hands over by path. It is believed neither about where they are nor about what they are.

A path may lead out of the volume, a file may be a pipe that never ends or a link to something of this user's that is
nobody's business; so only regular files inside the root are opened, and no more is read than there can be.
"""

from __future__ import annotations

from pathlib import Path

from coldstart.artifact import open_regular
from coldstart.errors import ArtifactCorrupt, ArtifactError

NONCE_FOLDER = "nonces"  # what a proof is read from lies directly in a folder of this name
MAX_PROOF_BYTES = 64


def inside(root: Path, relative: str) -> Path:
    """`relative` under `root`, links resolved. Raises ArtifactCorrupt where it leads out of it."""
    try:
        path = (root / relative).resolve()
        if path.is_relative_to(root.resolve()):
            return path
    except (ValueError, OSError, RuntimeError) as exc:  # a NUL, a name too long, links in a circle
        raise ArtifactCorrupt(f"{relative[:80]!r} is no path ({exc})") from exc
    raise ArtifactCorrupt(f"{relative[:80]!r} leads out of the volume")


def proof(root: Path, relative: str) -> bytes:
    """The nonce that a daemon wrote on its disk; b"" where this process can't see it. It is sent back to the daemon,
    so nothing but a nonce may be read here."""
    try:
        path = inside(root, relative)
        if path.parent.name != NONCE_FOLDER:
            return b""
        with open_regular(path) as file:
            found = file.read(MAX_PROOF_BYTES + 1)
    except (OSError, ArtifactError):
        return b""
    return found if len(found) <= MAX_PROOF_BYTES else b""
