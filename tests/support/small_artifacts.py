"""Small artifacts and key records, for tests of stores and for the processes that they start."""

from __future__ import annotations

import hashlib

from coldstart import artifact
from coldstart.artifact import Artifact
from coldstart.identity.key import Component, KeyRecord, key_of


def make_record(word: str) -> KeyRecord:
    program = hashlib.sha256(word.encode()).hexdigest()
    values = {
        "program": program,
        "options": "o",
        "target": "cpu:16",
        "flags": "",
        "callbacks": "0",
    }
    return KeyRecord(
        tuple(Component(name, value) for name, value in values.items()), program_name=word
    )


def make_artifact(word: str, content: bytes = b"code", **about: object) -> Artifact:
    record = make_record(word)
    fields: dict[str, object] = {
        "key": key_of(record),
        "module_digest": record.module_digest,
        "platform": "cpu",
        "target": "cpu:16",
        "partitions": 16,
        "replicas": 1,
        "callbacks": 0,
        "program_name": word,
    }
    return artifact.make(content, codec="raw", **(fields | about))
