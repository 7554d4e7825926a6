"""Uploads: a publish that arrives in unary calls, one after the other, instead of one stream.

A Python client can't stream while its interpreter ends: gRPC starts a thread for that, and none may be started any
more. Each upload feeds the same publish as a stream does, which drops one that falls silent. Bounded.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from coldstart.errors import InvalidRequest, TierFull
from coldstart.server.publisher import Publication, Published

MAX_UPLOADS = 256  # under way at once
MAX_ID_CHARS = 128
CHUNKS_AHEAD = 2  # received and not yet written
MAX_PIECE_BYTES = 4 << 20  # of one call: what is held ahead is bounded by this

Publish = Callable[[Publication, AsyncIterator[bytes]], Awaitable[Published]]


@dataclass(slots=True)
class _Upload:
    task: asyncio.Future[Published]
    chunks: asyncio.Queue[bytes | None]


class Uploads:
    """Those under way, by the id that their client chose. On one event loop."""

    def __init__(self, publish: Publish) -> None:
        self._publish = publish
        self._running: dict[str, _Upload] = {}
        self._ends: deque[tuple[str, _Upload]] = deque()  # ended, and kept for whoever asks last

    def __len__(self) -> int:
        return len(self._running)

    def begin(self, upload_id: str, publication: Publication) -> None:
        """Open an upload. Raises InvalidRequest for an id that is no good or in use, TierFull for too many."""
        if not 0 < len(upload_id) <= MAX_ID_CHARS:
            raise InvalidRequest(f"upload_id has 1 to {MAX_ID_CHARS} characters")
        if upload_id in self._running:
            raise InvalidRequest("that upload has begun already; a new one takes a new upload_id")
        if len(self._running) >= MAX_UPLOADS:
            raise TierFull(f"{MAX_UPLOADS} uploads are under way; try again later")
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(CHUNKS_AHEAD)
        task = asyncio.ensure_future(self._publish(publication, self._arriving(queue)))
        upload = self._running[upload_id] = _Upload(task, queue)
        task.add_done_callback(lambda done: self._ended(upload_id, upload))

    async def feed(self, upload_id: str, data: bytes, *, last: bool) -> Published | None:
        """Hand on a piece; with the last one, how the publish ended. Raises what the publish raises."""
        upload = self._running.get(upload_id)
        if upload is None:
            raise InvalidRequest(
                "no such upload; it ended, was silent for too long, or never began"
            )
        if len(data) > MAX_PIECE_BYTES:
            raise InvalidRequest(
                f"a piece has at most {MAX_PIECE_BYTES} bytes, this one {len(data)}"
            )
        pieces: list[bytes | None] = [data] if data else []
        for piece in (*pieces, *([None] if last else [])):
            if not await self._put(upload, piece):
                break  # the publish ended early: refused, or unwanted and answered already
        if not (last or upload.task.done()):
            return None
        # A client that stops waiting doesn't end the publish: the bytes are here. It may ask again how it ended.
        await asyncio.wait({upload.task})
        self._drop(upload_id, upload)
        return upload.task.result()

    def close(self) -> None:
        for upload in self._running.values():
            upload.task.cancel()

    async def _put(self, upload: _Upload, piece: bytes | None) -> bool:
        putting = asyncio.ensure_future(upload.chunks.put(piece))
        either: set[asyncio.Future[Any]] = {putting, upload.task}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if putting.done():
            return True
        putting.cancel()
        return False

    async def _arriving(self, queue: asyncio.Queue[bytes | None]) -> AsyncIterator[bytes]:
        while True:
            piece = await queue.get()
            if piece is None:
                return
            yield piece

    def _ended(self, upload_id: str, upload: _Upload) -> None:
        if not upload.task.cancelled():
            upload.task.exception()  # seen: whoever feeds it next gets it, and nobody may come
        while not upload.chunks.empty():  # that it ended without
            upload.chunks.get_nowait()
        # The last call's client is being answered; for one that never comes the end is kept a little.
        self._ends.append((upload_id, upload))
        while len(self._ends) > MAX_UPLOADS // 4:
            self._drop(*self._ends.popleft())

    def _drop(self, upload_id: str, upload: _Upload) -> None:
        """Forget this one, and not another that took its id since."""
        if self._running.get(upload_id) is upload:
            del self._running[upload_id]
