"""Store URLs: parsed into frozen dataclasses, and opened as one tier. The composition root's way in.

    disk:///var/cache/coldstart?cs.limit=20GiB&cs.write=false
    memory://?cs.limit=1GiB
    redis://host:6379/0?cs.max_value=64MiB&cs.ttl=7d      redis_url.py has them all; rediss:// is the same over TLS
    gs://bucket/prefix?cs.write=false                       gcs_url.py has them all

Our options carry `cs.`; anything else in the query is a mistake and is named. The order of URLs is the order of
tiers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote, urlsplit

from coldstart.errors import ConfigError, TierError
from coldstart.store import disk, memory
from coldstart.store.chain import ChainTier, WritePolicy
from coldstart.store.disk import DiskTier
from coldstart.store.disk_layout import LAYOUT
from coldstart.store.gcs_url import SCHEME as GCS_SCHEME
from coldstart.store.gcs_url import GcsStore, open_gcs, parse_gcs
from coldstart.store.late_marks import LateMarks
from coldstart.store.memory import MemoryTier
from coldstart.store.recorder import Recorder, ignore
from coldstart.store.redis_url import SCHEMES as REDIS_SCHEMES
from coldstart.store.redis_url import RedisStore, open_redis, parse_redis
from coldstart.store.tier import Tier
from coldstart.store.url_options import Options
from coldstart.store.verified import Gate, verified
from coldstart.store.within import innermost
from coldstart.store.wrap import Metered, ReadOnly

if TYPE_CHECKING:  # needs the extra
    from coldstart.store.redis import RedisTier

OPTIONS = ("cs.limit", "cs.write")


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


Store = DiskStore | MemoryStore | RedisStore | GcsStore


def parse_store(url: str) -> Store:
    """One store URL. Raises ConfigError, which names the part to fix."""
    try:
        parts = urlsplit(url)
        if parts.scheme in REDIS_SCHEMES and not parts.fragment:
            return parse_redis(url, parts)
    except ValueError as exc:
        shown = url.partition("://")[0] + "://" + url.rpartition("@")[2] if "@" in url else url
        raise ConfigError(
            f"store {shown!r} is not a URL: {exc}; write for instance disk:///dir"
        ) from exc
    if parts.scheme not in ("disk", "memory", GCS_SCHEME, *REDIS_SCHEMES):
        raise ConfigError(
            f"store {url!r}: unknown kind {parts.scheme or url!r}; write for instance disk:///dir or memory://"
        )
    if parts.fragment:
        raise ConfigError(
            f"store {url!r}: '#' begins a fragment, which means nothing here; write %23"
        )
    if parts.scheme == GCS_SCHEME:
        return parse_gcs(url, parts)
    options = Options(url, parts.query, known=OPTIONS)
    limit_bytes = options.size("cs.limit", 0, example="20GiB")
    write = options.flag("cs.write", True)
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
    environ: Mapping[str, str] = os.environ,
    namespace: str = "",
    generation: int = 0,
    gate: Gate | None = None,
) -> Tier:
    """One tier for all URLs, in their order; every tier metered. Passwords come from `environ` or files.

    Args:
        gate: says which artifacts may be believed; None: all.

    Raises:
        ConfigError: a URL that can't be used, or a folder that can't be made or read.
    """
    stores = [placed(parse_store(url), namespace, generation) for url in urls]
    folders = [store.path for store in stores if isinstance(store, DiskStore)]
    for folder in folders:
        if folders.count(folder) > 1:
            raise ConfigError(f"store disk://{folder} is named twice; name it once")
    if sum(isinstance(store, RedisStore) for store in stores) > 1:
        raise ConfigError("two redis:// stores are named; one daemon uses one Redis")
    tiers = [_open(store, recorder, environ, gate) for store in stores]
    if len(tiers) == 1:
        return tiers[0]
    required = {tier.name for tier, store in zip(tiers, stores, strict=True) if _required(store)}
    folders = [store.path for store in stores if isinstance(store, DiskStore) and store.write]
    marks = LateMarks(folders[0] / LAYOUT / "late" if folders else None)
    return ChainTier(
        tiers, write_policy=write_policy, required=required, recorder=recorder, marks=marks
    )


def disk_of(tier: Tier) -> DiskTier | None:
    """The first disk tier inside, for handing files over by path; None where there is none."""
    found = innermost(tier, lambda inner: isinstance(inner, DiskTier))
    return found if isinstance(found, DiskTier) else None


def redis_of(tier: Tier) -> RedisTier | None:
    """The Redis tier inside, for its link; None where there is none."""
    found = innermost(tier, lambda inner: hasattr(inner, "link"))
    return None if found is None else cast("RedisTier", found)


def _required(store: Store) -> bool:
    return isinstance(store, GcsStore) and store.required


def placed(store: Store, namespace: str, generation: int) -> Store:
    """Where that namespace and generation lie in a store. The default ones lie where they always did."""
    if not namespace and not generation:
        return store
    parts = ("ns", namespace or "-", str(generation))  # no namespace is called "-"
    if isinstance(store, DiskStore):
        return replace(store, path=store.path.joinpath(*parts))
    if isinstance(store, RedisStore):
        return replace(store, prefix=":".join((store.prefix, *parts)))
    if isinstance(store, GcsStore):
        return replace(store, prefix="/".join(filter(None, (store.prefix.strip("/"), *parts))))
    return store


def _open(store: Store, recorder: Recorder, environ: Mapping[str, str], gate: Gate | None) -> Tier:
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
    elif isinstance(store, GcsStore):
        tier = open_gcs(store, recorder)
    elif isinstance(store, RedisStore):
        tier = open_redis(store, recorder, environ)
    else:
        tier = MemoryTier(limit_bytes=store.limit_bytes, recorder=recorder)
    tier = tier if store.write else ReadOnly(tier)
    return Metered(tier if gate is None else verified(tier, gate), recorder)
