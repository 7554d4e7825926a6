"""FaultProxy: a TCP proxy in front of a real server, which can be made to fail in the ways that networks do.

    with FaultProxy(("127.0.0.1", port)) as proxy:
        client = connect(proxy.address)
        proxy.black_hole()      # accepts and passes on nothing; what is open goes silent too
        proxy.heal()

Faults hold for open connections and for new ones, until `heal` or another fault. Knows nothing of protocols: what it
alters, it alters as bytes on the way from the server (`answers`) or to it (`requests`). Threads, so that tests of any
kind can use it; `close` ends them all.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

Alter = Callable[[bytes], bytes]
CHUNK_BYTES = 64 << 10
TICK_SECONDS = 0.02  # how soon a changed fault is noticed


@dataclass(frozen=True)
class Fault:
    """What is wrong now."""

    silent: bool = False
    bytes_per_second: float = 0.0  # 0: as fast as it goes
    delay_seconds: float = 0.0  # before each piece of an answer
    cut_after_bytes: int = -1  # of answers, counted over all connections; -1: never
    asked_since: bool = False  # spare who only hears the answer to what it asked before
    answers: Alter | None = None
    requests: Alter | None = None


class FaultProxy:
    """Listens on a free port of 127.0.0.1; `port` stays the same through `refuse` and `heal`."""

    def __init__(self, server: tuple[str, int]) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._fault = Fault()
        self._answered = 0  # bytes of answers since the fault was set
        self._asked: set[socket.socket] = set()  # clients that asked something since
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._listener: socket.socket | None = None
        self.port = 0
        self.connections = 0  # that were ever accepted
        self._listen()

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def address(self) -> tuple[str, int]:
        return ("127.0.0.1", self.port)

    # --- faults --------------------------------------------------------------------------------

    def heal(self) -> None:
        """As if there were no proxy. Connections that were silent stay as they are: cut them with `drop`."""
        self._set(Fault())
        self._listen()

    def refuse(self) -> None:
        """Nobody listens; open connections are reset."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            listener.close()
        self.drop()

    def drop(self) -> None:
        """Reset every open connection; new ones are accepted."""
        with self._lock:
            sockets, self._sockets = self._sockets, set()
        for one in sockets:
            reset(one)

    def black_hole(self) -> None:
        """Accept, read, and answer nothing."""
        self._set(Fault(silent=True))

    def slow(self, *, bytes_per_second: float = 0.0, delay_seconds: float = 0.0) -> None:
        """Answers trickle."""
        self._set(Fault(bytes_per_second=bytes_per_second, delay_seconds=delay_seconds))

    def cut(self, after_bytes: int, *, asked_since: bool = False) -> None:
        """Reset the connection that is being answered once, from now on, that many bytes of answers went through.

        `asked_since`: only answers on connections that ask something from now on count.
        """
        self._set(Fault(cut_after_bytes=after_bytes, asked_since=asked_since))

    def alter(self, *, answers: Alter | None = None, requests: Alter | None = None) -> None:
        """Pass every piece through a function; see `flip_in`."""
        self._set(Fault(answers=answers, requests=requests))

    def close(self) -> None:
        self._closed = True
        self.refuse()
        for thread in self._threads:
            thread.join(10)

    # --- the work ------------------------------------------------------------------------------

    def _set(self, fault: Fault) -> None:
        with self._lock:
            self._fault, self._answered = fault, 0
            self._asked.clear()

    def _listen(self) -> None:
        if self._listener is not None or self._closed:
            return
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(128)
        self.port = listener.getsockname()[1]
        self._listener = listener
        self._start(self._accept, listener)

    def _start(self, work: Callable[..., None], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:  # closed
                return
            self.connections += 1
            self._start(self._connect, client)

    def _connect(self, client: socket.socket) -> None:
        while self._fault.silent:  # a server that is not there can't be connected to in its stead
            with self._lock:
                self._sockets.add(client)
            time.sleep(TICK_SECONDS)
            if self._closed or client.fileno() < 0:
                reset(client)
                return
        try:
            server = socket.create_connection(self._server, timeout=10)
        except OSError:
            reset(client)
            return
        server.settimeout(None)
        with self._lock:
            self._sockets |= {client, server}
        if self._closed or self._listener is None:
            self.drop()
            return
        asking = self._start(self._pump, client, server, False)
        self._pump(server, client, True)
        asking.join()
        with self._lock:
            self._sockets -= {client, server}
            self._asked.discard(client)
        client.close()
        server.close()

    def _pump(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        try:
            while data := source.recv(CHUNK_BYTES):
                while self._fault.silent:
                    if self._closed or sink.fileno() < 0:
                        return
                    time.sleep(TICK_SECONDS)
                if not answers:
                    with self._lock:
                        self._asked.add(source)
                self._pass_on(data, sink, answers)
            with contextlib.suppress(OSError):
                sink.shutdown(socket.SHUT_WR)
        except OSError:
            reset(source)
            reset(sink)

    def _pass_on(self, data: bytes, sink: socket.socket, answers: bool) -> None:
        fault = self._fault
        alter = fault.answers if answers else fault.requests
        if alter is not None:
            data = alter(data)
        if not answers:
            sink.sendall(data)
            return
        if fault.delay_seconds:
            self._sleep(fault, fault.delay_seconds)
        if fault.cut_after_bytes >= 0 and (sink in self._asked or not fault.asked_since):
            with self._lock:
                left = fault.cut_after_bytes - self._answered
                self._answered += len(data)
            if left < len(data):
                sink.sendall(data[: max(0, left)])
                with self._lock:
                    self._fault = replace(self._fault, cut_after_bytes=-1)  # once
                raise ConnectionResetError
        if not fault.bytes_per_second:
            sink.sendall(data)
            return
        step = max(1, int(fault.bytes_per_second * TICK_SECONDS))
        for start in range(0, len(data), step):
            sink.sendall(data[start : start + step])
            if self._fault is fault:
                time.sleep(TICK_SECONDS)

    def _sleep(self, fault: Fault, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self._fault is fault and not self._closed and time.monotonic() < until:
            time.sleep(TICK_SECONDS)


def flip_in(pattern: bytes, *, times: int = 1) -> Alter:
    """Alters one bit in the middle of `pattern`, in the first pieces that hold it whole."""
    left = times
    at = len(pattern) // 2
    flipped = pattern[:at] + bytes([pattern[at] ^ 1]) + pattern[at + 1 :]

    def alter(data: bytes) -> bytes:
        nonlocal left
        if left <= 0 or pattern not in data:
            return data
        left -= 1
        return data.replace(pattern, flipped, 1)

    return alter


def reset(one: socket.socket) -> None:
    """Close with RST, as a host that is gone does; wakes whoever reads from it."""
    with contextlib.suppress(OSError):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RD)
    with contextlib.suppress(OSError):
        one.close()
