"""The plan manifest: which key and artifact each entry of a plan has for one target. Whole or absent.

Minimal so far: JSON, unsigned. It also remembers compile seconds, so that the next run starts with the longest.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from coldstart.errors import ConfigError

FORMAT = 1


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """One entry of a plan. An entry that can't be shared has neither key nor digest."""

    entry: str  # program and bucket
    key: str
    digest: str
    compile_seconds: float


def write_manifest(
    path: Path, *, plan: str, manifest: str, target: str, entries: Iterable[ManifestEntry]
) -> None:
    """Write by rename: a reader sees the old one or the new one."""
    content = {
        "format": FORMAT,
        "plan": plan,
        "manifest": manifest,
        "target": target,
        "entries": [asdict(entry) for entry in entries],
    }
    try:
        if path.exists() and not path.is_file():  # a pipe, or a device: never to be replaced
            with path.open("w") as into:
                json.dump(content, into, indent=1)
                into.write("\n")
            return
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=f".{path.name}.", delete=False
        ) as temporary:
            try:
                json.dump(content, temporary, indent=1)
                temporary.write("\n")
                temporary.flush()
                os.fchmod(temporary.fileno(), 0o644)
                os.fsync(temporary.fileno())
                os.replace(temporary.name, path)
            except BaseException:
                os.unlink(temporary.name)
                raise
    except OSError as exc:
        raise ConfigError(
            f"--manifest {path}: {exc.strerror or exc}; give a file in a folder that can be written"
        ) from exc


def recorded_seconds(path: Path) -> Mapping[str, float]:
    """Compile seconds by key, from an earlier manifest; nothing where there is none that can be read."""
    try:
        entries = json.loads(path.read_text())["entries"]
        return {str(entry["key"]): float(entry["compile_seconds"]) for entry in entries}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
