"""What a setting may be, however it is written: text from the environment or a flag, or a TOML value.

Each function takes what was given and returns what is used; it raises ValueError with what is wanted instead.
Standard library only: the hook imports this inside the user's process.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit


def text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("wants some text")
    return value.strip()


def flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in ("1", "true", "yes", "on"):
        return True
    if word in ("", "0", "false", "no", "off"):
        return False
    raise ValueError("wants 1 or 0")


def one_of(*words: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        word = str(value).strip().lower()
        if word not in words:
            raise ValueError(f"wants one of {', '.join(words)}{did_you_mean(word, words)}")
        return word

    return parse


def seconds(least: float, most: float) -> Callable[[Any], float]:
    def parse(value: Any) -> float:
        with suppress(ValueError, TypeError):
            if not isinstance(value, bool) and least <= float(value) <= most:
                return float(value)
        raise ValueError(f"wants seconds between {least:g} and {most:g}")

    return parse


def size(value: Any) -> int:
    match = re.fullmatch(r"\s*(\d+)\s*(|[KMGT]iB)\s*", str(value))
    if match is None or isinstance(value, bool):
        raise ValueError("wants bytes, or a number with KiB, MiB, GiB or TiB")
    number = int(match[1]) << {"": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}[match[2]]
    if number <= 0:
        raise ValueError("wants more than 0 bytes")
    return number


def whole(least: int, most: int) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        with suppress(ValueError, TypeError):
            if not isinstance(value, bool | float) and least <= int(value) <= most:
                return int(value)
        raise ValueError(f"wants a whole number between {least} and {most}")

    return parse


def name(value: Any) -> str:
    """A word that can be a part of a path, of a key in Redis and of an object's name."""
    given = text(value)
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}", given) is None:
        raise ValueError("wants 1 to 63 letters, digits, - and _, beginning with a letter or digit")
    return given


def count(value: Any) -> int:
    text = str(value).strip()
    if isinstance(value, bool) or not re.fullmatch(r"\d{1,9}", text, re.ASCII) or int(text) < 1:
        raise ValueError("wants a whole number from 1 on")
    return int(text)


def identity(value: Any) -> str:
    """Who somebody is to a daemon: trust/roles.py."""
    given = text(value)
    if re.fullmatch(r"unix|anyone|uid:\d{1,10}|(tls|token):\S{1,200}", given) is None:
        raise ValueError("wants unix, uid:NUMBER, tls:NAME, token:NAME or anyone")
    return given


def octal(value: Any) -> int:
    given = f"{value:o}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    if re.fullmatch(r"(0o)?[0-7]{3,4}", given) is None:
        raise ValueError("wants an octal file mode")
    return int(given.removeprefix("0o"), 8)


def path(value: Any) -> Path:
    return Path(text(value)).expanduser()


def many(parse: Callable[[Any], str]) -> Callable[[Any], tuple[str, ...]]:
    """A list in TOML and on the command line; separated by commas in the environment."""

    def parse_all(value: Any) -> tuple[str, ...]:
        items = value.split(",") if isinstance(value, str) else list(value)
        if not items:
            raise ValueError("wants at least one")
        return tuple(parse(item) for item in items)

    return parse_all


def parse_address(value: Any) -> str:
    """A gRPC address: `unix:///absolute/path.sock` or `tcp://host:port`; port 0 takes a free one."""
    given = text(value)
    if given.startswith("unix://"):
        path = given.removeprefix("unix://")
        if not path.startswith("/") or path.endswith("/"):
            raise ValueError("wants unix:// and an absolute path of a file")
        if len(os.fsencode(path)) > 103:  # sun_path holds 108 on Linux, 104 elsewhere
            raise ValueError("wants a path of at most 103 bytes, a socket's address holds no more")
        return given
    if given.startswith("tcp://"):
        return "tcp://" + parse_host_port(given.removeprefix("tcp://"))
    raise ValueError("wants unix:///path or tcp://host:port")


def parse_host_port(value: Any) -> str:
    """`host:port`, as `--http` and `--health` take it; an IPv6 host stands in brackets."""
    given = text(value)
    try:
        parts = urlsplit("//" + given)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError("wants host:port, with a port from 0 to 65535") from None
    if not host or port is None or parts.path or parts.query or parts.username is not None:
        raise ValueError("wants host:port")
    return given


def store(value: Any) -> str:
    """A store URL, or its TOML table: `url` and our options without the `cs.`."""
    if isinstance(value, Mapping):
        options = dict(value)
        url = text(options.pop("url", ""))
        query = "&".join(
            f"cs.{name}={quote(str(option), safe='/')}" for name, option in options.items()
        )
        if query:
            url += ("&" if "?" in url else "?") + query
        return store(url)
    given = text(value)
    if re.match(r"[a-z]+://", given) is None:
        raise ValueError("wants a store URL")
    return given


def rules_off(value: Any) -> tuple[str, ...]:
    names = [name.strip() for name in str(value).split(",") if name.strip()]
    if any(not name.startswith("-") or len(name) < 2 for name in names):
        raise ValueError(
            "wants names of rules with a minus before each: rules can only be switched off"
        )
    return tuple(name[1:] for name in names)


def did_you_mean(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f" (did you mean {close[0]}?)" if close else ""
