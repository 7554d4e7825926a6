"""Uploads: a publish that arrives in unary calls, one after the other, instead of one stream.

A Python client can't stream while its interpreter ends: gRPC starts a thread for that, and none may be started any
more. Each upload feeds the same publish as a stream does; one that falls silent is dropped. Bounded.
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
IDLE_SECONDS = 30.0  # between two calls of one upload
CHUNKS_AHEAD = 4  # received and not yet written

Publish = Callable[[Publication, AsyncIterator[bytes]], Awaitable[Published]]


@dataclass(slots=True)
class _Upload:
    task: asyncio.Future[Published]
    chunks: asyncio.Queue[bytes | None]


class Uploads:
    """Those under way, by the id that their client chose. On one event loop."""

    def __init__(self, publish: Publish, idle_seconds: float = IDLE_SECONDS) -> None:
        self._publish = publish
        self._idle_seconds = idle_seconds
        self._running: dict[str, _Upload] = {}
        self._ends: deque[str] = deque()  # ended and not yet asked about

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
        self._running[upload_id] = _Upload(task, queue)
        task.add_done_callback(lambda done: self._ended(upload_id, done))

    async def feed(self, upload_id: str, data: bytes, *, last: bool) -> Published | None:
        """Hand on a piece; with the last one, how the publish ended. Raises what the publish raises."""
        upload = self._running.get(upload_id)
        if upload is None:
            raise InvalidRequest(
                "no such upload; it ended, was silent for too long, or never began"
            )
        pieces: list[bytes | None] = [data] if data else []
        for piece in (*pieces, *([None] if last else [])):
            if not await self._put(upload, piece):
                break  # the publish ended early: refused, or unwanted and answered already
        if not (last or upload.task.done()):
            return None
        try:
            return await upload.task
        finally:
            self._running.pop(upload_id, None)

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
            try:
                piece = await asyncio.wait_for(queue.get(), self._idle_seconds)
            except TimeoutError as exc:
                raise InvalidRequest(f"upload was silent for {self._idle_seconds:g} s") from exc
            if piece is None:
                return
            yield piece

    def _ended(self, upload_id: str, task: asyncio.Future[Published]) -> None:
        if not task.cancelled():
            task.exception()  # seen: whoever feeds it next gets it, and nobody may come
        # The last call's client is being answered; for one that never comes the end is kept a little.
        self._ends.append(upload_id)
        while len(self._ends) > MAX_UPLOADS // 4:
            self._running.pop(self._ends.popleft(), None)
