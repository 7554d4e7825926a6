"""Store URLs: parsed into frozen dataclasses, and opened as one tier. The composition root's way in.

    disk:///var/cache/coldstart?cs.limit=20GiB&cs.write=false
    memory://?cs.limit=1GiB

Our options carry `cs.`; anything else in the query is a mistake and is named. The order of URLs is the order of
tiers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from coldstart.errors import ConfigError, TierError
from coldstart.store import disk, memory
from coldstart.store.chain import ChainTier, WritePolicy, innermost
from coldstart.store.disk import DiskTier
from coldstart.store.memory import MemoryTier
from coldstart.store.recorder import Recorder, ignore
from coldstart.store.tier import Tier
from coldstart.store.wrap import Metered, ReadOnly

OPTIONS = ("cs.limit", "cs.write")
LATER = ("redis", "rediss", "gs")

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{p}iB": 1024 ** (i + 1) for i, p in enumerate("KMGT")}
_UNITS |= {f"{p}B": 1000 ** (i + 1) for i, p in enumerate("KMGT")}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([A-Za-z]*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class DiskStore:
    """`disk:///dir`"""

    path: Path
    limit_bytes: int = disk.DEFAULT_LIMIT_BYTES
    write: bool = True


@dataclass(frozen=True, slots=True)
class MemoryStore:
    """`memory://`"""

    limit_bytes: int = memory.DEFAULT_LIMIT_BYTES
    write: bool = True


Store = DiskStore | MemoryStore


def parse_size(text: str, *, setting: str = "size") -> int:
    """20GiB, 512 MB, 1048576 -> bytes."""
    match = _SIZE.fullmatch(text.strip())
    unit = next((u for u in _UNITS if match and u.lower() == match[2].lower()), None)
    if match is None or unit is None:
        raise ConfigError(f"{setting}={text!r} is not a size; write for instance 20GiB or 500MB")
    return int(float(match[1]) * _UNITS[unit]) if "." in match[1] else int(match[1]) * _UNITS[unit]


def parse_store(url: str) -> Store:
    """One store URL. Raises ConfigError, which names the part to fix."""
    try:
        parts = urlsplit(url)
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError as exc:
        raise ConfigError(
            f"store {url!r} is not a URL: {exc}; write for instance disk:///dir"
        ) from exc
    if parts.scheme in LATER:
        raise ConfigError(
            f"store {url!r}: {parts.scheme}:// comes with a later release; now there are disk:// and memory://"
        )
    if parts.scheme not in ("disk", "memory"):
        raise ConfigError(
            f"store {url!r}: unknown kind {parts.scheme or url!r}; write for instance disk:///dir or memory://"
        )
    if parts.fragment:
        raise ConfigError(
            f"store {url!r}: '#' begins a fragment, which means nothing here; write %23"
        )
    settings = _options(url, options)
    limit_text = settings.get("cs.limit")
    limit_bytes = None if limit_text is None else parse_size(limit_text, setting="cs.limit")
    if limit_bytes == 0:
        raise ConfigError(
            f"store {url!r}: cs.limit=0 would hold nothing; write for instance cs.limit=20GiB"
        )
    write = _yes_or_no(url, settings.get("cs.write", "true"))
    if parts.scheme == "memory":
        if parts.netloc or parts.path not in ("", "/"):
            raise ConfigError(f"store {url!r}: a memory store has no place; write memory://")
        return MemoryStore(limit_bytes or memory.DEFAULT_LIMIT_BYTES, write)
    if parts.netloc or not parts.path.startswith("/"):
        raise ConfigError(
            f"store {url!r}: the folder must be absolute, with three slashes; write for instance disk:///dir"
        )
    return DiskStore(Path(unquote(parts.path)), limit_bytes or disk.DEFAULT_LIMIT_BYTES, write)


def open_store(
    urls: Sequence[str],
    *,
    recorder: Recorder = ignore,
    write_policy: WritePolicy = "best_effort",
) -> Tier:
    """One tier for all URLs, in their order; every tier metered.

    Raises:
        ConfigError: a URL that can't be used, or a folder that can't be made or read.
    """
    stores = [parse_store(url) for url in urls]
    folders = [store.path for store in stores if isinstance(store, DiskStore)]
    for folder in folders:
        if folders.count(folder) > 1:
            raise ConfigError(f"store disk://{folder} is named twice; name it once")
    tiers = [_open(store, recorder) for store in stores]
    if len(tiers) == 1:
        return tiers[0]
    return ChainTier(tiers, write_policy=write_policy, recorder=recorder)


def disk_of(tier: Tier) -> DiskTier | None:
    """The first disk tier inside, for handing files over by path; None where there is none."""
    found = innermost(tier, lambda inner: isinstance(inner, DiskTier))
    return found if isinstance(found, DiskTier) else None


def _open(store: Store, recorder: Recorder) -> Tier:
    tier: Tier
    if isinstance(store, DiskStore):
        try:
            tier = disk = DiskTier(store.path, limit_bytes=store.limit_bytes, recorder=recorder)
            if (
                store.write
            ):  # or it would say that it is ready, and every process would compile for ever
                disk.check_writable()
        except TierError as exc:
            raise ConfigError(f"store disk://{store.path}: {exc}") from exc
    else:
        tier = MemoryTier(limit_bytes=store.limit_bytes, recorder=recorder)
    return Metered(tier if store.write else ReadOnly(tier), recorder)


def _options(url: str, pairs: list[tuple[str, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in pairs:
        if name not in OPTIONS:
            raise ConfigError(
                f"store {url!r}: unknown option {name!r}; known here: {', '.join(OPTIONS)}"
            )
        if name in found:
            raise ConfigError(f"store {url!r}: option {name!r} is given twice")
        found[name] = value
    return found


def _yes_or_no(url: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise ConfigError(
            f"store {url!r}: cs.write={text!r}; write cs.write=true or cs.write=false"
        )
    return text == "true"
