"""Bucket: a Google Cloud Storage bucket in a handful of calls, each with a deadline and a bounded back-off.

The one file that knows the client library. The library blocks, so every call runs in a bounded pool of threads; its
deadline counts from the moment it was asked for, queueing and retries included. What an answer came to:

    None, False       certain: no such object; or, where a generation was demanded, another one is there
    TierTimeout       silence
    TierFull          429, or a 403 that speaks of a quota, for longer than the retries last
    TierNotReady      no credentials yet, within `grace_seconds` of the start
    TierError         anything else, the last status named

Retried with jitter: 403, 408, 429, 5xx, connections that break, bodies that arrive damaged. 401 renews the token once.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import io
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from coldstart.errors import ConfigError, TierError, TierFull, TierNotReady, TierTimeout

try:
    import requests
    import urllib3
    from google.api_core import exceptions as answers
    from google.auth import default as default_credentials
    from google.auth.credentials import AnonymousCredentials, Credentials
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import AuthorizedSession
    from google.cloud import storage
    from google.cloud.storage import exceptions as transfers
except ImportError as exc:  # pragma: no cover - an environment without the extra
    raise ConfigError(
        f"gs:// stores need another package ({exc}); install it with: pip install 'coldstart[gcs]'"
    ) from exc

log = logging.getLogger(__name__)

T = TypeVar("T")
EMULATOR = "STORAGE_EMULATOR_HOST"
SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
RETRIED = frozenset({403, 408, 429, 500, 502, 503, 504})
QUOTA_WORDS = ("ratelimit", "rate limit", "quota", "exceeded")
LATE = 1.05  # how much longer a call may take to say that it took too long
FAILING_SECONDS = 5.0
SILENT_SECONDS = 1.0  # a small call that is given up after so long has failed
FORGET_CLOCK_SECONDS = 300.0  # an estimate; the server's clock may be set back
_RETRY_WORDS = {TierTimeout: "timeout", TierFull: "full"}
SLOWEST_BYTES_PER_SECOND = 1 << 20  # an upload that is slower has stopped


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a bucket is waited for."""

    call_seconds: float = 10.0  # a small call, with its retries
    idle_seconds: float = 10.0  # between two pieces of a body
    grace_seconds: float = 60.0  # after the start, for credentials and the metadata server
    read_tries: int = 3
    write_tries: int = 5
    backoff_seconds: float = 0.2  # before the second try; doubles, with jitter, up to 5 s


@dataclass(frozen=True, slots=True)
class Stored:
    """An object as the bucket describes it."""

    name: str
    generation: int  # of these very bytes; a later one is greater
    size_bytes: int
    metadata: Mapping[str, str]
    updated_unix: float  # by the server's clock


class _Deadline:
    """When a call has to be over. Made on the event loop, looked at in the pool."""

    def __init__(self, seconds: float, idle_seconds: float) -> None:
        self.seconds = seconds
        self._ends = time.monotonic() + seconds
        self._idle_seconds = idle_seconds
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Nobody waits for it any more."""
        self._stopped.set()

    def left(self) -> float:
        """Raises TierTimeout once it is over."""
        left = 0.0 if self._stopped.is_set() else self._ends - time.monotonic()
        if left <= 0:
            raise TierTimeout(f"no answer within {self.seconds:g} s")
        return left

    def timeout(self) -> tuple[float, float]:
        """For the library: to connect, and between two pieces."""
        left = self.left()
        return (left, min(left, self._idle_seconds))

    def pause(self, seconds: float) -> None:
        if seconds >= self.left() or self._stopped.wait(seconds):
            raise TierTimeout(f"no good answer within {self.seconds:g} s")


class Bucket:
    """One bucket. Opens nothing until the first call, so that a daemon starts without it."""

    def __init__(
        self,
        name: str,
        *,
        endpoint: str | None = None,
        credentials: Credentials | None = None,
        patience: Patience | None = None,
        on_retry: Callable[[str], None] = lambda outcome: None,
        threads: int = 16,
    ) -> None:
        """`endpoint` is for servers of one's own; STORAGE_EMULATOR_HOST names one as well.

        `on_retry` is told error, full or timeout before each further try, on the event loop.
        """
        self.name = name
        self.patience = patience or Patience()
        self._endpoint = endpoint
        self._credentials = credentials
        self._on_retry = on_retry
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="coldstart-gcs")
        self._opening = threading.Lock()  # held while credentials are looked for
        self._client: Any = None
        self._born = time.monotonic()
        self._server_ahead = 0.0  # seconds: the server's wall clock less our monotonic one
        self._heard_at = 0.0  # by our clock; 0: never
        self._failed_at = 0.0  # by our clock; 0: the last call that ended worked
        self._closed = False

    def server_unix(self) -> float | None:
        """The server's clock now, never too late, and up to 1 s too early; None before its first answer."""
        return time.monotonic() + self._server_ahead if self._heard_at else None

    @property
    def failing(self) -> bool:
        """The last call failed, or was given up in silence, and that was only just now."""
        return bool(self._failed_at) and time.monotonic() - self._failed_at < FAILING_SECONDS

    async def give_way(self, times: int) -> None:
        """After others got in the way `times` times (412): a pause, longer each time, not the same for all."""
        if times:
            self._on_retry("error")
            await asyncio.sleep(self.patience.backoff_seconds * times * random.uniform(0.5, 1.5))

    async def stat(self, name: str) -> Stored | None:
        def call(deadline: _Deadline) -> Stored | None:
            blob = self._blob(name, deadline)
            blob.reload(timeout=deadline.timeout(), retry=None)
            return _stored(blob)

        return await self._ask("stat", name, call)

    async def list(self, prefix: str) -> tuple[Stored, ...]:
        """Every object whose name begins so, in order of names."""

        def call(deadline: _Deadline) -> tuple[Stored, ...]:
            client = self._opened(deadline)
            found = client.list_blobs(
                self.name, prefix=prefix, timeout=deadline.timeout(), retry=None
            )
            return tuple(_stored(blob) for blob in _while(deadline, found))

        found = await self._ask("list", prefix, call)
        if found is None:
            raise TierError(
                f"gcs: there is no bucket {self.name}; make it, or correct the store's URL"
            )
        return found

    async def read(
        self,
        name: str,
        generation: int,
        *,
        start: int = 0,
        most_bytes: int | None = None,
        seconds: float | None = None,
    ) -> bytes | None:
        """Bytes of that very generation; None: gone. Fewer than asked for where the object ends."""

        def call(deadline: _Deadline) -> bytes:
            sink = _Sink(deadline)
            whole = start == 0 and most_bytes is None
            self._blob(name, deadline, generation).download_to_file(
                sink,
                start=None if whole else start,
                end=None if most_bytes is None else start + most_bytes - 1,
                raw_download=True,  # what was stored, whatever its encoding is said to be
                checksum=None,  # artifacts carry a better one
                timeout=deadline.timeout(),
                retry=None,
            )
            return sink.getvalue()

        return await self._ask("read", name, call, seconds=seconds)

    async def write(
        self,
        name: str,
        parts: Callable[[], Iterator[bytes]],
        size_bytes: int,
        *,
        metadata: Mapping[str, str],
        generation: int,
        tries: int | None = None,
    ) -> Stored | None:
        """An object, whole or not at all, if `generation` is there now (0: none); None: another one is.

        `parts` is called anew for each try. Raises what `parts` raises.
        """

        def call(deadline: _Deadline) -> Stored:
            blob = self._blob(name, deadline)
            blob.metadata = dict(metadata)
            body = io.BytesIO(b"".join(parts()))
            blob.upload_from_file(
                body,
                size=size_bytes,
                content_type="application/octet-stream",
                if_generation_match=generation,
                timeout=deadline.timeout(),
                checksum="crc32c",
                retry=None,
            )
            stored = _stored(blob)
            self._learn(stored.updated_unix)
            return stored

        seconds = self.patience.call_seconds + size_bytes / SLOWEST_BYTES_PER_SECOND
        tries = tries or self.patience.write_tries
        return await self._ask("write", name, call, seconds=seconds, tries=tries)

    async def copy(self, source: Stored, name: str) -> bool:
        """Another name for the same bytes; False: they are gone."""

        def call(deadline: _Deadline) -> bool:
            client = self._opened(deadline)
            bucket = client.bucket(self.name)
            bucket.copy_blob(
                bucket.blob(source.name),
                bucket,
                name,
                source_generation=source.generation,
                timeout=deadline.timeout(),
                retry=None,
            )
            return True

        return bool(await self._ask("copy", source.name, call, tries=self.patience.write_tries))

    async def delete(self, name: str, generation: int) -> bool:
        """True: that generation was there and is gone."""

        def call(deadline: _Deadline) -> bool:
            blob = self._blob(name, deadline)
            blob.delete(if_generation_match=generation, timeout=deadline.timeout(), retry=None)
            return True

        return bool(await self._ask("delete", name, call, tries=self.patience.write_tries))

    async def close(self) -> None:
        """Calls that are under way end in their own time; nobody waits for them. Idempotent."""
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._client is not None:
            self._client.close()

    async def _ask(
        self,
        op: str,
        name: str,
        call: Callable[[_Deadline], T],
        *,
        seconds: float | None = None,
        tries: int | None = None,
    ) -> T | None:
        """`call` in the pool. None: not found, or a generation that isn't there."""
        if self._closed:
            raise TierError(f"gcs: {op} of {name}: the bucket is closed")
        deadline = _Deadline(seconds or self.patience.call_seconds, self.patience.idle_seconds)
        began = time.monotonic()
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(
            self._pool, self._try, call, deadline, tries or self.patience.read_tries, loop
        )
        try:
            async with asyncio.timeout(deadline.seconds * LATE):  # its thread has better words
                got = await work
        except TimeoutError as exc:
            self._failed_at = time.monotonic()
            words = f"gcs: {op} of {name}: no answer within {deadline.seconds:g} s"
            raise TierTimeout(words) from exc
        except TierError as exc:
            self._failed_at = time.monotonic()
            raise type(exc)(f"gcs: {op} of {name}: {exc}") from exc.__cause__
        except asyncio.CancelledError:
            # A chain waits for less than a deadline; who comes next mustn't wait for the same silence again.
            if seconds is None and time.monotonic() - began >= SILENT_SECONDS:
                self._failed_at = time.monotonic()
            raise
        finally:
            deadline.stop()
        self._failed_at = 0.0
        return got

    def _try(
        self,
        call: Callable[[_Deadline], T],
        deadline: _Deadline,
        tries: int,
        loop: asyncio.AbstractEventLoop,
    ) -> T | None:
        """In the pool: until it works, can't, or has taken too long."""
        for further in range(tries - 1, -1, -1):
            try:
                return call(deadline)
            except (answers.NotFound, answers.PreconditionFailed):
                return None
            except (
                answers.GoogleAPICallError, requests.RequestException, transfers.DataCorruption,
                transfers.InvalidResponse, GoogleAuthError, ConnectionError,
                urllib3.exceptions.HTTPError,
            ) as exc:  # fmt: skip
                trouble = self._trouble(exc)
                if not further or not _worth_another(exc):
                    raise trouble from exc
            word = _RETRY_WORDS.get(type(trouble), "error")
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(self._on_retry, word)
            doubled = self.patience.backoff_seconds * 2 ** (tries - 1 - further)
            deadline.pause(min(5.0, doubled) * random.uniform(0.5, 1.5))
        raise AssertionError("every last try returns or raises")

    def _trouble(self, exc: Exception) -> TierError:
        """The library's words in ours."""
        if isinstance(exc, GoogleAuthError):
            if time.monotonic() - self._born < self.patience.grace_seconds:
                return TierNotReady(f"no credentials yet: {exc}")
            return TierError(f"no credentials: {exc}; see whether this host may use the bucket")
        if isinstance(exc, requests.Timeout | TimeoutError) or _status(exc) in (408, 504):
            return TierTimeout(f"no answer in time: {exc}")
        status = _status(exc)
        if status == 429 or (status == 403 and any(w in str(exc).lower() for w in QUOTA_WORDS)):
            return TierFull(f"answered {status}: {exc}")
        return TierError(f"answered {status}: {exc}" if status else f"{type(exc).__name__}: {exc}")

    def _blob(self, name: str, deadline: _Deadline, generation: int | None = None) -> Any:
        return self._opened(deadline).bucket(self.name).blob(name, generation=generation)

    def _opened(self, deadline: _Deadline) -> Any:
        """The library's client. Looking for credentials may ask a server, so one thread does it at a time."""
        if self._client is None:
            if not self._opening.acquire(timeout=deadline.left()):
                raise TierNotReady("credentials are still being looked for")
            try:
                if self._client is None:
                    self._client = self._open()
            finally:
                self._opening.release()
        deadline.left()
        return self._client

    def _open(self) -> Any:
        emulator = self._endpoint or os.environ.get(EMULATOR, "")
        credentials = self._credentials
        project = "coldstart"  # only named when buckets are made, which we don't
        if credentials is None and emulator:
            credentials = AnonymousCredentials()  # type: ignore[no-untyped-call]
        if credentials is None:
            credentials, found = default_credentials(scopes=[SCOPE])
            project = found or project
        session = AuthorizedSession(credentials, max_refresh_attempts=1)  # type: ignore[no-untyped-call]
        session.hooks["response"].append(self._hear)
        options = {"api_endpoint": self._endpoint} if self._endpoint else None
        client = storage.Client(
            project=project, credentials=credentials, _http=session, client_options=options
        )
        # Else it asks about the bucket itself, for tracing, from a thread of its own without a deadline.
        client._bucket_metadata_cache = None
        return client

    def _hear(self, response: requests.Response, **_: Any) -> None:
        date = email.utils.parsedate_tz(response.headers.get("Date", ""))
        if date is not None:
            self._learn(email.utils.mktime_tz(date))

    def _learn(self, server_unix: float) -> None:
        """It was at least that late at the server. Of what was heard lately, the latest is the nearest to the truth."""
        now = time.monotonic()
        ahead = server_unix - now
        if ahead > self._server_ahead or now - self._heard_at > FORGET_CLOCK_SECONDS:
            self._server_ahead = ahead
            self._heard_at = now


class _Sink(io.BytesIO):
    """What has come of a body; says when it took too long, however steadily it drips."""

    def __init__(self, deadline: _Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def write(self, data: Any) -> int:
        self._deadline.left()
        return super().write(data)


def _while(deadline: _Deadline, found: Any) -> Iterator[Any]:
    for blob in found:
        deadline.left()
        yield blob


def _status(exc: Exception) -> int:
    code = getattr(exc, "code", None) or getattr(getattr(exc, "response", None), "status_code", 0)
    return int(code) if isinstance(code, int) else 0


def _worth_another(exc: Exception) -> bool:
    if isinstance(exc, GoogleAuthError):
        return False
    status = _status(exc)
    return status in RETRIED or not 400 <= status < 500


def _stored(blob: Any) -> Stored:
    return Stored(
        blob.name,
        int(blob.generation or 0),
        int(blob.size or 0),
        dict(blob.metadata or {}),
        blob.updated.timestamp() if blob.updated else 0.0,
    )
