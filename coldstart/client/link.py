"""Link: this process's connection to its daemon, and how much patience is left for it.

A dead or silent daemon may cost a process at most two seconds in all. So every foreground call gets at most the
patience that is left: 1 s at first, half of it after a failure that took all of it (1 + ½ + ¼ + … < 2). One that cost
the caller less takes less: a refused connection, or a call in the background. After a failure the foreground doesn't
call at all until a background thread has seen the daemon answer. Patience doubles again for every ten minutes in which
calls were answered and none failed, so a process that lives for weeks isn't left with none.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from coldstart.client import volume as volumes
from coldstart.client.client import CONNECT_SECONDS, SMALL_CALL_SECONDS, CacheClient
from coldstart.errors import ColdstartError, DaemonError
from coldstart.rpc.v1 import cache_pb2 as pb

log = logging.getLogger("coldstart")

T = TypeVar("T")

REGROW_SECONDS = 600.0
RETRY_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0)  # between background tries; the last one repeats


class Link:
    """One process's view of one daemon. Thread-safe; a fork gets a new one."""

    def __init__(
        self,
        address: str,
        *,
        holder: str,
        volume_root: Path | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.address = address
        self._holder = holder
        self._volume_root = volume_root
        self._lock = threading.Lock()
        self._connecting = threading.Lock()  # before _lock
        self._client: CacheClient | None = None
        # Its words only, made an error anew each time: one that is raised again grows by its raisers' frames, and
        # holds their modules for as long as it lives.
        self._down: tuple[type[DaemonError], str] | None = None
        self._retrying = False
        self._patience = SMALL_CALL_SECONDS
        self._now = now
        self._settled = 0.0  # when it failed last, or its patience grew last
        self.lost_seconds = 0.0
        self.hello: pb.HelloReply = pb.HelloReply()
        self.volume: Path | None = None  # where this process sees the daemon's disk, once proven
        self.volume_proof = b""

    @property
    def patience(self) -> float:
        """Seconds that a foreground call may take now."""
        return self._patience

    def client(self) -> CacheClient:
        """The connected client. Raises DaemonError, at once where the daemon is known to be down."""
        known = self._known()
        if known is not None:
            return known
        # One connects, the others wait for it: thirty-two channels at once would all be slow.
        with self._connecting:
            return self._known() or self.foreground(self._connect)

    def _known(self) -> CacheClient | None:
        with self._lock:
            if self._client is None and self._down is not None:
                kind, message = self._down
                raise kind(message)
            return self._client

    def foreground(self, call: Callable[[], T]) -> T:
        """Run a call whose failure means that the daemon is down; what it cost is remembered."""
        began = self._now()
        try:
            answer = _apart(call)
        except DaemonError as exc:
            self.mark_down(exc, self._now() - began)
            raise
        if self._patience < SMALL_CALL_SECONDS:
            self._regrow()
        return answer

    def _regrow(self) -> None:
        with self._lock:
            if self._now() - self._settled >= REGROW_SECONDS:
                self._settled = self._now()
                self._patience = min(SMALL_CALL_SECONDS, 2 * self._patience)

    def mark_down(self, error: DaemonError, lost_seconds: float) -> None:
        """No foreground calls until a background try succeeds. Patience loses half of what the caller lost."""
        with self._lock:
            self.lost_seconds += lost_seconds
            self._patience -= min(lost_seconds, self._patience) / 2
            self._settled = self._now()
            self._down = (type(error), str(error))
            self._client = None
            if self._retrying:
                return
            self._retrying = True
        try:
            threading.Thread(target=self._retry, name="coldstart-retry", daemon=True).start()
        except RuntimeError:
            # No thread to be had: whoever comes next tries, with the patience that is left.
            with self._lock:
                self._down, self._retrying = None, False

    def _connect(self, *, patience: float | None = None) -> CacheClient:
        seconds = self._patience if patience is None else patience
        client = CacheClient(self.address, holder=self._holder)
        try:
            client.connect(min(CONNECT_SECONDS, seconds))
            hello = client.hello(seconds)
            volume, proof = self._prove(hello)
        except ColdstartError:
            client.close()
            raise
        with self._lock:
            if self._client is not None:  # another thread was faster
                client.close()
                return self._client
            self._client, self._down = client, None
            self.hello, self.volume, self.volume_proof = hello, volume, proof
        return client

    def _prove(self, hello: pb.HelloReply) -> tuple[Path | None, bytes]:
        """Read the nonce that the daemon wrote on its disk: then files can be handed over by path."""
        if not hello.volume.nonce_path:
            return None, b""
        root = self._volume_root or Path(hello.volume.root)
        proof = volumes.proof(root, hello.volume.nonce_path)
        return (root, proof) if proof else (None, b"")

    def _retry(self) -> None:
        for attempt in range(1_000_000):
            time.sleep(RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)])
            try:
                self._connect(patience=5.0)
            except ColdstartError:
                continue
            except Exception:  # whatever it is, this thread is the only way back to the cache
                log.exception("the daemon at %s can't be used", self.address)
                continue
            break
        with self._lock:
            self._retrying = False


def _apart(call: Callable[[], T]) -> T:
    """Run `call`; in a thread of its own where the caller's is one that the interpreter doesn't wait for at its end.

    gRPC takes the GIL again a few times a second. A daemon thread that does so while the interpreter ends is unwound by
    Python, and beneath a compile lie frames of JAX's that can't be: from Python 3.12 on, the process crashes. The
    thread that waits here takes nothing again until there is an answer.
    """
    if not threading.current_thread().daemon:
        return call()
    answers: list[T] = []
    errors: list[BaseException] = []
    done = threading.Lock()
    done.acquire()

    def run() -> None:
        try:
            answers.append(call())
        except BaseException as exc:
            errors.append(exc)
        finally:
            done.release()

    try:
        threading.Thread(target=run, name="coldstart-call", daemon=True).start()
    except RuntimeError:  # the interpreter ends already
        return call()
    done.acquire()
    if errors:
        raise errors[0]
    return answers[0]
