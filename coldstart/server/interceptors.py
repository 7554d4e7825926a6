"""One interceptor for all methods: errors become statuses, calls get an id and are measured.

Ours go out with their own status and message. What we did not raise on purpose goes out as a bare INTERNAL, and
into the log in full, under the id that the caller was given. A message that can't be parsed is the caller's
mistake: INVALID_ARGUMENT, where the library would say INTERNAL.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

import grpc
from grpc import aio

from coldstart.errors import ColdstartError

log = logging.getLogger("coldstart.server")

REQUEST_ID = "coldstart-request-id"  # in trailing metadata
MAX_ID_CHARS = 64


class CallRecorder(Protocol):
    """Counts one finished call."""

    def __call__(self, method: str, status: str, seconds: float) -> None: ...


class _Unreadable:
    """Stands for a request that can't be parsed."""


_UNREADABLE = _Unreadable()


class Edge(aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """The outer edge of the server."""

    def __init__(
        self,
        recorder: CallRecorder,
        now: Callable[[], float] = time.monotonic,
        *,
        check: Callable[[str, Any], None] = lambda method, context: None,
    ) -> None:
        """`check` raises where the caller may not make that call; it gets the method's whole name."""
        self._recorder = recorder
        self._now = now
        self.check = check

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: Any
    ) -> Any:
        handler = await continuation(details)
        if handler is None:
            return None  # unknown method: the library says UNIMPLEMENTED
        method = details.method
        parse = _safe(handler.request_deserializer)
        codecs = {"request_deserializer": parse, "response_serializer": handler.response_serializer}
        if handler.request_streaming and handler.response_streaming:
            return handler  # health and reflection; none of ours
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(
                self._streaming(method, handler.unary_stream), **codecs
            )
        if handler.request_streaming:
            return grpc.stream_unary_rpc_method_handler(
                self._single(method, handler.stream_unary), **codecs
            )
        return grpc.unary_unary_rpc_method_handler(
            self._single(method, handler.unary_unary), **codecs
        )

    def _single(self, method: str, behave: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
        async def call(request: Any, context: Any) -> Any:
            async with _Call(self, method, context) as guard:
                self.check(method, context)
                return await behave(guard.readable(request), context)

        return call

    def _streaming(
        self, method: str, behave: Callable[..., AsyncIterator[Any]]
    ) -> Callable[..., Any]:
        async def call(request: Any, context: Any) -> AsyncIterator[Any]:
            async with _Call(self, method, context) as guard:
                self.check(method, context)
                async for reply in behave(guard.readable(request), context):
                    yield reply

        return call

    def record(self, method: str, status: str, began: float) -> None:
        self._recorder(method, status, self._now() - began)

    def now(self) -> float:
        return self._now()


class _Call:
    """One call: turns what is raised inside into a status."""

    def __init__(self, edge: Edge, method: str, context: Any) -> None:
        self._edge = edge
        self._method = method.rpartition("/")[2]
        self._context = context
        self._began = edge.now()
        self._id = _id_of(context)

    async def __aenter__(self) -> _Call:
        self._context.set_trailing_metadata(((REQUEST_ID, self._id),))
        return self

    def readable(self, request: Any) -> Any:
        if request is _UNREADABLE:
            raise _BadMessage
        return _checked(request) if hasattr(request, "__aiter__") else request

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        status, message = _status_of(error)
        self._edge.record(self._method, status, self._began)
        if error is None or isinstance(
            error, aio.AbortError | asyncio.CancelledError | GeneratorExit
        ):
            return
        if status == "INTERNAL":
            log.error("%s failed (request %s)", self._method, self._id, exc_info=error)
            message = f"internal error; the daemon's log has it under request {self._id}"
        await self._context.abort(grpc.StatusCode[status], message)


class _BadMessage(Exception):
    """A request that can't be parsed."""


def _status_of(error: BaseException | None) -> tuple[str, str]:
    if error is None:
        return "OK", ""
    if isinstance(error, ColdstartError):
        return error.status, str(error)
    if isinstance(error, _BadMessage):
        return "INVALID_ARGUMENT", "the message can't be parsed as what this method takes"
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return "CANCELLED", ""
    if isinstance(error, UnicodeError):
        return "INVALID_ARGUMENT", "a text is not valid Unicode"
    return "INTERNAL", ""


async def _checked(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for request in requests:
        if request is _UNREADABLE:
            raise _BadMessage
        yield request


def _safe(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def parse_or_mark(data: bytes) -> Any:
        try:
            return parse(data)
        except Exception:  # whatever the protobuf library in use raises for bad bytes
            return _UNREADABLE

    return parse_or_mark


def _id_of(context: Any) -> str:
    """The caller's request id where it sent a usable one, else a new one."""
    for name, value in context.invocation_metadata() or ():
        if name == REQUEST_ID and isinstance(value, str) and value.isalnum():
            return value[:MAX_ID_CHARS]
    return secrets.token_hex(8)
