"""The gRPC client: one small method per call of cache.proto, a deadline on each, gRPC's errors turned into ours.

It knows nothing of JAX and decides nothing: what an answer means is `session`'s matter. Never used from two
processes: `session` makes a new one after a fork.
"""

from __future__ import annotations

import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, NoReturn, TypeVar

import grpc

from coldstart import __version__
from coldstart.client.introduce import Access, Metadata, access_of, introduction, open_channel
from coldstart.errors import (
    ArtifactCorrupt,
    ArtifactMismatch,
    ColdstartError,
    DaemonAbsent,
    DaemonError,
    DaemonTimeout,
    InvalidRequest,
    LeaseLost,
    NotAllowed,
    TierError,
    TierFull,
    UnknownCall,
)
from coldstart.identity.key import SCHEME
from coldstart.rpc.v1 import admin_pb2, admin_pb2_grpc, cache_pb2_grpc
from coldstart.rpc.v1 import cache_pb2 as pb

T = TypeVar("T")

SMALL_CALL_SECONDS = 1.0
CONNECT_SECONDS = 0.3
REQUEST_ID = "coldstart-request-id"  # trailing metadata of every answer of a daemon
LOOKUP_SECONDS = 10.0  # a lookup may have to ask slow tiers
ALIVE_SECONDS = 5.0  # for the next bytes of a hit, from a daemon that says that it is alive
STREAM_SECONDS = 300.0  # for a whole artifact, in the background
MAX_MESSAGE_BYTES = 64 << 20  # descriptors; artifacts travel in chunks

_OPTIONS = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.enable_http_proxy", 0),
    # A daemon that comes back is noticed by our own retries; gRPC's back-off would hide it for minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)

_ERRORS: dict[grpc.StatusCode, type[ColdstartError]] = {
    grpc.StatusCode.UNAVAILABLE: DaemonAbsent,
    grpc.StatusCode.CANCELLED: DaemonAbsent,
    grpc.StatusCode.DEADLINE_EXCEEDED: DaemonTimeout,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.UNIMPLEMENTED: InvalidRequest,  # by a daemon older than the call: it is alive
    grpc.StatusCode.DATA_LOSS: ArtifactCorrupt,
    grpc.StatusCode.FAILED_PRECONDITION: ArtifactMismatch,
    grpc.StatusCode.RESOURCE_EXHAUSTED: TierFull,
    grpc.StatusCode.ABORTED: LeaseLost,
    grpc.StatusCode.PERMISSION_DENIED: NotAllowed,
    grpc.StatusCode.UNIMPLEMENTED: UnknownCall,
}


class CacheClient:
    """Calls to one daemon."""

    def __init__(self, address: str, *, holder: str) -> None:
        self.address = address
        self.holder = holder
        self._access = Access() if address.startswith("unix://") else access_of()
        self._introduction: Metadata = ()  # who this is, with each call
        self._channel = open_channel(address, self._access, _OPTIONS)
        self._cache = cache_pb2_grpc.CacheStub(self._channel)
        self._admin = admin_pb2_grpc.AdminStub(self._channel)

    def close(self) -> None:
        self._channel.close()

    def connect(self, seconds: float = CONNECT_SECONDS) -> None:
        """Find out at once when nobody listens. Raises DaemonAbsent or DaemonTimeout."""
        try:
            if self.address.startswith("unix:"):
                with socket.socket(socket.AF_UNIX) as probe:
                    probe.settimeout(seconds)
                    probe.connect(self.address.removeprefix("unix://"))
            else:
                host, _, port = self.address.removeprefix("tcp://").rpartition(":")
                socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()
        except TimeoutError as exc:
            raise DaemonTimeout(f"no answer from {self.address} within {seconds:g} s") from exc
        except OSError as exc:
            raise DaemonAbsent(
                f"no daemon at {self.address} ({exc.strerror or exc}); "
                f"start one with: coldstart daemon --listen {self.address}"
            ) from exc
        self._introduction = introduction(self.address, self._access, seconds)

    # --- small calls ---------------------------------------------------------------------------

    def hello(self, seconds: float = SMALL_CALL_SECONDS) -> pb.HelloReply:
        request = pb.HelloRequest(client_version=__version__, scheme=SCHEME, holder=self.holder)
        return self._call(self._cache.Hello, request, seconds, pb.HelloReply)

    def lookup(self, request: pb.LookupRequest, patience: float) -> pb.LookupReply:
        """The daemon may ask slow tiers for this, for up to LOOKUP_SECONDS, as long as it says that it is alive."""
        return self._call_while_alive(self._cache.Lookup, request, patience, pb.LookupReply)

    def await_(self, request: pb.AwaitRequest, patience: float) -> pb.LookupReply:
        """As `lookup`, once the time is over for which the daemon was asked to wait."""
        wait = request.max_wait_seconds
        return self._call_while_alive(
            self._cache.Await, request, patience, pb.LookupReply, wait_seconds=wait
        )

    def reject(self, request: pb.RejectRequest, patience: float) -> pb.LookupReply:
        """As `lookup`."""
        return self._call_while_alive(self._cache.Reject, request, patience, pb.LookupReply)

    def renew(self, lease_id: str, seconds: float = SMALL_CALL_SECONDS) -> float:
        """Seconds that the lease lives on. Raises LeaseLost."""
        request = pb.RenewRequest(lease_id=lease_id)
        reply = self._call(self._cache.Renew, request, seconds, pb.RenewReply)
        return float(reply.seconds)

    def release(self, lease_id: str, seconds: float = SMALL_CALL_SECONDS) -> None:
        request = pb.ReleaseRequest(lease_id=lease_id)
        self._call(self._cache.Release, request, seconds, pb.ReleaseReply)

    def fail(self, request: pb.FailRequest, seconds: float = SMALL_CALL_SECONDS) -> None:
        self._call(self._cache.Fail, request, seconds, pb.FailReply)

    def finish(self, request: pb.FinishRequest, seconds: float = SMALL_CALL_SECONDS) -> None:
        self._call(self._cache.Finish, request, seconds, pb.FinishReply)

    def notice(self, request: pb.NoticeRequest, seconds: float = SMALL_CALL_SECONDS) -> None:
        """Raises InvalidRequest where the daemon is one that has no such call yet."""
        self._call(self._cache.Notice, request, seconds, pb.NoticeReply)

    def batch(self, request: pb.BatchRequest, seconds: float = 10.0) -> pb.BatchReply:
        return self._call(self._cache.Batch, request, seconds, pb.BatchReply)

    def record(self, key: str, seconds: float = 10.0) -> pb.GetRecordReply:
        return self._call(
            self._cache.GetRecord, pb.GetRecordRequest(key=key), seconds, pb.GetRecordReply
        )

    def descriptors(
        self, key: str, limit: int = 0, seconds: float = 10.0
    ) -> admin_pb2.GetDescriptorReply:
        """The raw programs that the daemon remembers under a key, latest first."""
        request = admin_pb2.GetDescriptorRequest(key=key, limit=limit)
        return self._call(self._admin.GetDescriptor, request, seconds, admin_pb2.GetDescriptorReply)

    def nearest(self, key: str, limit: int = 1, seconds: float = 10.0) -> admin_pb2.NearestReply:
        """The keys that differ from `key` in the fewest components, of those that the daemon remembers."""
        request = admin_pb2.NearestRequest(key=key, limit=limit)
        return self._call(self._admin.Nearest, request, seconds, admin_pb2.NearestReply)

    def activity(self, limit: int = 0, seconds: float = 10.0) -> admin_pb2.ActivityReply:
        """Raises UnknownCall where the daemon is one that has no such call yet."""
        request = admin_pb2.ActivityRequest(limit=limit)
        return self._call(self._admin.Activity, request, seconds, admin_pb2.ActivityReply)

    def upkeep(self, call: str, request: Any) -> Iterator[admin_pb2.UpkeepReply]:
        """ListStored, Purge or Verify: what they tell as they go, without an end to wait for.

        Raises UnknownCall where the daemon is one that has no such call yet.
        """
        try:
            yield from getattr(self._admin, call)(request, metadata=self._introduction)
        except grpc.RpcError as exc:
            self._fail(exc, call)

    def tidy(self, seconds: float = 600.0) -> int:
        """How many files were removed. Raises UnknownCall, as `upkeep`."""
        request = admin_pb2.TidyRequest()
        return int(self._call(self._admin.Tidy, request, seconds, admin_pb2.TidyReply).removed)

    def stats(self, seconds: float = 10.0) -> admin_pb2.StatsReply:
        return self._call(
            self._admin.Stats, admin_pb2.StatsRequest(), seconds, admin_pb2.StatsReply
        )

    # --- bytes ---------------------------------------------------------------------------------

    def fetch(
        self,
        request: pb.FetchRequest,
        idle_seconds: float,
        *,
        most_bytes: int,
        most_seconds: float,
    ) -> bytes:
        """A whole artifact's bytes, unchecked; goes on while they come, or the daemon says that it is alive.

        Silence costs `idle_seconds`: half of it for the next bytes, half for a Hello.

        Raises:
            ArtifactCorrupt: more than `most_bytes` come.
            TierError: the daemon is alive, and had no bytes for ALIVE_SECONDS.
        """
        call = self._cache.Fetch(request, timeout=most_seconds, metadata=self._introduction)
        parts: list[bytes] = []
        left = most_bytes
        done = threading.Event()
        beat = threading.Event()
        silent = threading.Event()
        slow = threading.Event()

        def watch() -> None:
            heard = time.monotonic()
            while not slow.is_set() and not silent.is_set():
                if beat.wait(idle_seconds / 2):
                    beat.clear()
                    if done.is_set():
                        return
                    heard = time.monotonic()
                    continue
                try:
                    self.hello(idle_seconds / 2)
                    if time.monotonic() - heard >= ALIVE_SECONDS:
                        slow.set()
                except ColdstartError:
                    silent.set()
            call.cancel()

        threading.Thread(target=watch, name="coldstart-fetch-watch", daemon=True).start()
        try:
            for chunk in call:
                left -= len(chunk.data)
                if left < 0:
                    call.cancel()
                    raise ArtifactCorrupt(
                        f"Fetch at {self.address}: more comes than the {most_bytes} bytes announced"
                    )
                parts.append(chunk.data)
                beat.set()
        except grpc.RpcError as exc:
            if slow.is_set():
                raise TierError(
                    f"Fetch at {self.address}: it is alive, and had no bytes for {ALIVE_SECONDS:g} s"
                ) from exc
            if silent.is_set():
                raise DaemonTimeout(
                    f"Fetch at {self.address}: nothing came for {idle_seconds:g} s"
                ) from exc
            self._fail(exc, "Fetch")
        finally:
            done.set()
            beat.set()
        return b"".join(parts)

    def publish(
        self, start: pb.PublishStart, payload: Iterable[bytes], idle_seconds: float
    ) -> pb.PublishReply:
        """Send an encoded payload under its header. The reply's digest is the authoritative one.

        In unary calls, each with `idle_seconds`: a stream would need a thread of gRPC's, and there may be none
        while the interpreter ends.
        """
        upload_id = uuid.uuid4().hex
        request = pb.UploadRequest(upload_id=upload_id, start=start)
        pieces = iter(payload)
        data = next(pieces, b"")
        while not request.last:
            following = next(pieces, None)
            request.data, request.last = data, following is None
            try:
                reply = self._upload(request, idle_seconds)
            except UnknownCall:
                if not request.HasField("start"):
                    raise
                rest = () if following is None else chain((following,), pieces)
                return self._stream(start, chain((data,), rest))
            if request.last or reply.HasField("published"):  # it may end early: not wanted
                break
            request = pb.UploadRequest(upload_id=upload_id)
            data = following or b""
        return reply.published

    def _upload(self, request: pb.UploadRequest, idle_seconds: float) -> pb.UploadReply:
        """One piece. After the last one a slow disk may take its time: asked again while the daemon is alive."""
        ends = time.monotonic() + STREAM_SECONDS
        while True:
            try:
                return self._call(self._cache.Upload, request, idle_seconds, pb.UploadReply)
            except DaemonTimeout:
                if not request.last or time.monotonic() > ends:
                    raise
                self.hello()
                request = pb.UploadRequest(upload_id=request.upload_id, last=True)

    def _stream(self, start: pb.PublishStart, pieces: Iterable[bytes]) -> pb.PublishReply:
        """As one call: what daemons had before Upload."""
        parts = (pb.PublishRequest(data=data) for data in pieces)
        requests = chain((pb.PublishRequest(start=start),), parts)
        try:
            reply: pb.PublishReply = self._cache.Publish(
                requests, timeout=STREAM_SECONDS, metadata=self._introduction
            )
            return reply
        except grpc.RpcError as exc:
            self._fail(exc, "Publish")

    # --- errors --------------------------------------------------------------------------------

    def _call(self, method: Callable[..., Any], request: Any, seconds: float, _reply: type[T]) -> T:
        try:
            reply: T = method(request, timeout=seconds, metadata=self._introduction)
            return reply
        except grpc.RpcError as exc:
            self._fail(exc, type(request).__name__.removesuffix("Request"))

    def _call_while_alive(
        self,
        method: Any,
        request: Any,
        patience: float,
        _reply: type[T],
        *,
        wait_seconds: float = 0.0,
    ) -> T:
        """A call that may take long. Silence costs `patience` in all: half of it for the call, half for a Hello.

        `patience` halves with every failure, and so does the time for the call: a daemon whose lookups hang, but
        that says Hello, costs a process 2 * LOOKUP_SECONDS in all.

        Args:
            wait_seconds: the daemon was asked to wait for so long first.
        """
        seconds = wait_seconds + LOOKUP_SECONDS * min(1.0, patience / SMALL_CALL_SECONDS)
        ends = time.monotonic() + seconds
        try:
            call = method.future(request, timeout=seconds, metadata=self._introduction)
        except RuntimeError:  # a compile while the interpreter ends: gRPC can't start its thread
            return self._call(method, request, wait_seconds + patience, _reply)
        silent_seconds = wait_seconds + patience / 2
        while True:
            try:
                reply: T = call.result(timeout=silent_seconds)
                return reply
            except grpc.FutureTimeoutError:
                silent_seconds = patience / 2
                try:
                    self.hello(patience / 2)
                    # gRPC's own deadline doesn't do: where its thread could not start, nothing tells us of it.
                    if time.monotonic() > ends:
                        name = type(request).__name__.removesuffix("Request")
                        raise DaemonTimeout(
                            f"{name} at {self.address}: no answer within {seconds:g} s"
                        )
                except ColdstartError:
                    call.cancel()
                    raise
            except grpc.RpcError as exc:
                self._fail(exc, type(request).__name__.removesuffix("Request"))

    def _fail(self, exc: grpc.RpcError, call: str) -> NoReturn:
        code, details = exc.code(), exc.details() or ""
        error = _ERRORS.get(code, DaemonError)
        metadata: Any = exc.trailing_metadata() or ()
        if code is grpc.StatusCode.UNAVAILABLE and REQUEST_ID in dict(metadata):
            error = TierError  # the daemon itself answered: it is there, a tier of it is not
        if error is DaemonTimeout:
            details = details or "no answer in time"
        raise error(f"{call} at {self.address}: {details or code.name}") from exc
