"""Frames: what the daemon and its canonicalizer workers say to each other over pipes.

frame   = text length, data length (8 bytes each, big endian), text, data
request = a `Job`; a serialized GraphDescriptor
answer  = JSON; the most memory that the worker ever used (8 bytes, big endian) and the compressed descriptor
"""

from __future__ import annotations

import asyncio
import struct
from enum import StrEnum
from typing import BinaryIO

HEAD = struct.Struct(">QQ")
MAX_TEXT_BYTES = 16 << 20
MAX_DATA_BYTES = 8 << 20  # of an answer; 20 000 nodes compress to 50 to 300 KB
PEAK_BYTES = 8


class Job(StrEnum):
    """What is wanted of a descriptor."""

    REWRITES = "rewrites"  # of one that steers; a module is what is keyed
    FINAL = "final"  # of a final one: its digest as well
    FINAL_EXACT = "final-exact"  # the digest of a final one as it is


def frame(text: bytes, data: bytes) -> bytes:
    return HEAD.pack(len(text), len(data)) + text + data


def read_frame(stream: BinaryIO) -> tuple[bytes, bytes] | None:
    """One frame; None at the end of the stream."""
    head = stream.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    text_bytes, data_bytes = HEAD.unpack(head)
    return stream.read(text_bytes), stream.read(data_bytes)


def write_frame(stream: BinaryIO, text: bytes, data: bytes) -> None:
    stream.write(frame(text, data))
    stream.flush()


async def receive(stream: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """One answer. Raises EOFError where the stream ends or holds something else."""
    try:
        text_bytes, data_bytes = HEAD.unpack(await stream.readexactly(HEAD.size))
        if text_bytes > MAX_TEXT_BYTES or data_bytes > MAX_DATA_BYTES:
            raise EOFError("not an answer")
        return await stream.readexactly(text_bytes), await stream.readexactly(data_bytes)
    except asyncio.IncompleteReadError as exc:
        raise EOFError("the stream ended") from exc
