"""Log lines on stderr: key=value for people and grep, or one JSON object a line.

Fields travel in `extra={"fields": {...}}`, so that a library's plain `logging` call comes out in the same form.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

ROOT = "coldstart"


def say(log: logging.Logger, message: str, *, level: int = logging.INFO, **fields: Any) -> None:
    """One line with fields."""
    log.log(level, message, extra={"fields": fields})


class TextFormatter(logging.Formatter):
    """time=… level=… msg="…" name=value …"""

    def format(self, record: logging.LogRecord) -> str:
        return " ".join(f"{name}={_quoted(value)}" for name, value in _fields(self, record).items())


class JsonFormatter(logging.Formatter):
    """The same fields as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(_fields(self, record), default=str)


def set_up(form: str, level: str) -> None:
    """Send our log lines to stderr. Called once, by the command that runs a daemon."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    for name in (ROOT, "uvicorn", "grpc"):
        log = logging.getLogger(name)
        log.handlers[:] = [handler]
        log.propagate = False
    logging.getLogger(ROOT).setLevel(level.upper())
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


def _fields(formatter: logging.Formatter, record: logging.LogRecord) -> dict[str, Any]:
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    fields: dict[str, Any] = {
        "time": f"{moment}.{int(record.msecs):03d}Z",
        "level": record.levelname.lower(),
        "from": record.name,
        "msg": record.getMessage(),
        **getattr(record, "fields", {}),
    }
    if record.exc_info:
        fields["error"] = formatter.formatException(record.exc_info)
    return fields


def _quoted(value: Any) -> str:
    text = str(value)
    if text and all(c.isprintable() and c not in ' "=' for c in text):
        return text
    return json.dumps(text)
