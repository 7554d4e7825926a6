"""What stands behind the `?` of a store URL: our options, which carry `cs.`; every mistake is named with its cure.

Options("disk:///d?cs.limit=1GiB", "cs.limit=1GiB", known=("cs.limit", "cs.write")).size("cs.limit", 0)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import parse_qsl

from coldstart.errors import ConfigError

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{p}iB": 1024 ** (i + 1) for i, p in enumerate("KMGT")}
_UNITS |= {f"{p}B": 1000 ** (i + 1) for i, p in enumerate("KMGT")}
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
MIN_COMPILE_SECONDS = "cs.min_compile_seconds"
DEFAULT_MIN_COMPILE_SECONDS = 0.5  # of a tier that hosts share
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([A-Za-z]*)", re.ASCII)


def parse_size(text: str, *, setting: str = "size") -> int:
    """20GiB, 512 MB, 1048576 -> bytes."""
    match = _SIZE.fullmatch(text.strip())
    unit = next((u for u in _UNITS if match and u.lower() == match[2].lower()), None)
    if match is None or unit is None:
        raise ConfigError(f"{setting}={text!r} is not a size; write for instance 20GiB or 500MB")
    return int(float(match[1]) * _UNITS[unit]) if "." in match[1] else int(match[1]) * _UNITS[unit]


def parse_seconds(text: str, *, setting: str = "time") -> float:
    """7d, 90s, 250ms -> seconds."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or match[2] not in _SECONDS:
        raise ConfigError(f"{setting}={text!r} is not a time; write for instance 7d, 12h or 250ms")
    return float(match[1]) * _SECONDS[match[2]]


class Options:
    """The options of one URL. Each is asked for by name; none is unknown or given twice."""

    def __init__(self, url: str, query: str, *, known: Sequence[str]) -> None:
        """Raises ConfigError for what is no query, is not in `known`, or is there twice."""
        self._url = url
        self._given: dict[str, str] = {}
        try:
            pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
        except ValueError as exc:
            raise self.wrong(f"is not a URL: {exc}; write for instance disk:///dir") from exc
        for name, value in pairs:
            if name not in known:
                raise self.wrong(f": unknown option {name!r}; known here: {', '.join(known)}")
            if name in self._given:
                raise self.wrong(f": option {name!r} is given twice")
            self._given[name] = value

    def wrong(self, words: str) -> ConfigError:
        """What to raise: the URL, then `words`."""
        return ConfigError(f"store {self._url!r}{'' if words.startswith(':') else ' '}{words}")

    def text(self, name: str, default: str) -> str:
        return self._given.get(name, default)

    def size(self, name: str, default: int, *, example: str) -> int:
        """Bytes, more than 0."""
        if name not in self._given:
            return default
        found = parse_size(self._given[name], setting=name)
        if found == 0:
            raise self.wrong(f": {name}=0 would hold nothing; write for instance {name}={example}")
        return found

    def seconds(self, name: str, default: float, *, example: str) -> float:
        """Seconds, more than 0."""
        if name not in self._given:
            return default
        found = parse_seconds(self._given[name], setting=name)
        if found <= 0:
            raise self.wrong(f": {name} must be more than 0; write for instance {name}={example}")
        return found

    def least_compile_seconds(self) -> float:
        """cs.min_compile_seconds: plain seconds, or with a unit; 0 is everything."""
        given = self._given.get(MIN_COMPILE_SECONDS)
        if given is None:
            return DEFAULT_MIN_COMPILE_SECONDS
        plain = re.fullmatch(r"\d+(\.\d+)?", given, re.ASCII)
        return float(given) if plain else parse_seconds(given, setting=MIN_COMPILE_SECONDS)

    def flag(self, name: str, default: bool) -> bool:
        given = self._given.get(name)
        if given is None:
            return default
        if given not in ("true", "false"):
            raise self.wrong(f": {name}={given!r}; write {name}=true or {name}=false")
        return given == "true"

    def path(self, name: str) -> Path | None:
        """An absolute path; None where it is not given."""
        given = self._given.get(name)
        if given is None:
            return None
        if not given.startswith("/"):
            raise self.wrong(f": {name}={given!r} must be an absolute path of a file")
        return Path(given)
