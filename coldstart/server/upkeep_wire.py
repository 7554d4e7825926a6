"""Upkeep's words as they go over the wire."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator

from coldstart.errors import InvalidRequest
from coldstart.rpc.v1 import admin_pb2
from coldstart.server.upkeep import Row
from coldstart.store.names import check_digest, check_key
from coldstart.store.selection import Selection

ROWS_A_REPLY = 100


def selection_from_pb(message: admin_pb2.Selection) -> Selection:
    """Raises InvalidRequest for what can be nobody's key, digest or time."""
    times = (message.made_before_unix, message.made_after_unix, message.unused_since_unix)
    if not all(math.isfinite(time) and time >= 0 for time in times):
        raise InvalidRequest(f"a selection's times are seconds since 1970, not {times}")
    return Selection(
        keys=tuple(check_key(key) for key in message.keys),
        digests=tuple(check_digest(digest) for digest in message.digests),
        producers=tuple(message.producers),
        programs=tuple(message.programs),
        platforms=tuple(message.platforms),
        compilers=tuple(message.compilers),
        rules=tuple(message.rules),
        made_before_unix=message.made_before_unix,
        made_after_unix=message.made_after_unix,
        unused_since_unix=message.unused_since_unix,
    )


async def replies(
    rows: AsyncIterator[Row], *, at_once: bool
) -> AsyncIterator[admin_pb2.UpkeepReply]:
    """Many rows to a reply; or each as it comes, where each takes its time."""
    reply = admin_pb2.UpkeepReply()
    async for row in rows:
        reply.rows.append(_row(row))
        if at_once or len(reply.rows) == ROWS_A_REPLY:
            yield reply
            reply = admin_pb2.UpkeepReply()
    if reply.rows:
        yield reply


def _row(row: Row) -> admin_pb2.UpkeepRow:
    message = admin_pb2.UpkeepRow(tier=row.tier, outcome=row.outcome, detail=row.detail, of=row.of)
    if row.kept is not None:
        header = row.kept.header
        message.key, message.digest = header.key, header.digest
        message.program_name, message.platform = header.program_name, header.platform
        message.producer, message.compiler = header.producer, header.compiler
        message.bytes, message.used_unix = row.kept.bytes, row.kept.used_unix
        message.compile_seconds = header.compile_seconds
        message.created_unix = header.created_unix
    return message
