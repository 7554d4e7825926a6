"""GcsProxy: stands before an object store, holds it to its preconditions, and fails as such services do.

Every request that names a generation is compared with what is there, under a lock for that object, and answered 412
if it is another: the stores that can be had for tests don't do so for every kind of request. `honours = False` does
the opposite: conditions are cut out, as by a store that ignores them all.

Faults are told apart by what a request is for: list, stat, read, write, copy, delete. HTTP/1.1 over plain sockets,
one thread for each connection, all ended by `close`.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

OPS = ("list", "stat", "read", "write", "copy", "delete")
READS, WRITES = ("list", "stat", "read"), ("write", "copy", "delete")
CONDITION = "ifGenerationMatch"
SENT = ("Content-Type", "Range", "Authorization", "Content-Range", "X-Goog-Resumable")
HOP = ("connection", "transfer-encoding", "content-length", "date", "keep-alive")


@dataclass
class Fault:
    """What happens to requests of those kinds, `times` times."""

    ops: Collection[str] = OPS
    times: float = float("inf")
    status: int = 0  # answered instead of the store
    reason: str = "backendError"  # the word in such an answer
    seconds: float = 0.0  # before anything is done
    silent: bool = False  # never answered
    cut_after: int | None = None  # bytes of the body, then the connection ends
    flip_at: int | None = None  # one bit of that byte of the body


@dataclass
class Seen:
    """One request."""

    op: str
    name: str
    status: int = 0  # 0: was not answered
    token: str = ""
    path: str = ""
    at: float = field(default_factory=time.monotonic)


class GcsProxy:
    """One proxy on a port of its own, which it keeps when it refuses connections and takes them again."""

    def __init__(self, store_url: str) -> None:
        self.store = urlsplit(store_url).netloc
        self.honours = True
        self.tokens: set[str] | None = None  # who may ask; None: anybody
        self.requests: list[Seen] = []
        self.faults: list[Fault] = []
        self.lock = threading.Lock()  # of `faults` and `conditions`
        self.conditions: dict[str, tuple[str, str]] = {}  # upload id -> name, generation
        self.objects: defaultdict[str, threading.RLock] = defaultdict(threading.RLock)
        self.healed = threading.Event()
        self._connections: set[socket.socket] = set()
        self._server: _Server | None = None
        self.port = 0
        self.accept()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def fail(self, **how: object) -> Fault:
        """A fault from now on."""
        fault = Fault(**how)  # type: ignore[arg-type]
        with self.lock:
            self.faults.append(fault)
        return fault

    def heal(self) -> None:
        """No faults any more; who was left without an answer is cut off."""
        with self.lock:
            self.faults.clear()
        self.honours, self.tokens = True, None
        self.healed.set()
        self.healed = threading.Event()
        self.accept()

    def refuse(self) -> None:
        """Nothing listens, and connections that are open end."""
        server, self._server = self._server, None
        if server is None:
            return
        server.shutdown()
        server.server_close()
        self.healed.set()
        self.cut()

    def accept(self) -> None:
        if self._server is not None:
            return
        self._server = _Server(self, self.port)
        self.port = self._server.server_address[1]
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, name="gcs-proxy"
        ).start()

    def cut(self) -> None:
        for connection in tuple(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.refuse()
        deadline = time.monotonic() + 20
        while self._connections and time.monotonic() < deadline:
            self.cut()
            time.sleep(0.01)
        assert not self._connections, "a connection of the proxy did not end"

    def asked(self, *ops: str) -> list[Seen]:
        return [seen for seen in tuple(self.requests) if not ops or seen.op in ops]

    def next_fault(self, op: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if op in fault.ops and fault.times > 0:
                    fault.times -= 1
                    return fault
        return None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, proxy: GcsProxy, port: int) -> None:
        self.proxy = proxy
        super().__init__(("127.0.0.1", port), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # connections that end early are what this is for


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.proxy = self.server.proxy
        self.proxy._connections.add(self.connection)
        self.store = http.client.HTTPConnection(self.proxy.store, timeout=60)

    def finish(self) -> None:
        self.store.close()
        self.proxy._connections.discard(self.connection)
        with contextlib.suppress(OSError):
            super().finish()

    def log_message(self, *words: object) -> None:
        pass

    def do_GET(self) -> None:
        self._handle()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        op, name = what_for(self.command, parts.path, query, body)
        seen = Seen(op, name, token=self.headers.get("Authorization", ""), path=self.path)
        self.proxy.requests.append(seen)
        fault = self.proxy.next_fault(op) or Fault()
        healed = self.proxy.healed
        if fault.seconds:
            healed.wait(fault.seconds)
        if fault.silent:
            healed.wait()
            self.close_connection = True
            return
        if self.proxy.tokens is not None and seen.token not in self.proxy.tokens:
            self._answer(seen, 401, error(401, "authError"))
            return
        if fault.status:
            self._answer(seen, fault.status, error(fault.status, fault.reason))
            return
        with self.proxy.objects[name] if op in WRITES else contextlib.nullcontext():
            if not self._condition_holds(name, query):
                self._answer(seen, 412, error(412, "conditionNotMet"))
                return
            status, headers, data = self._forward(parts.path, query, body, name)
        self._answer(seen, status, data, headers, fault)

    def _condition_holds(self, name: str, query: dict[str, str]) -> bool:
        wanted = query.get(CONDITION)
        upload = query.get("upload_id", "")
        if wanted is None and upload in self.proxy.conditions:
            name, wanted = self.proxy.conditions[upload]
        if not self.proxy.honours:
            query.pop(CONDITION, None)
            return True
        if wanted is None:
            return True
        bucket = re.search(r"/b/([^/]+)/o", self.path)
        assert bucket is not None
        path = f"/storage/v1/b/{bucket[1]}/o/{quote(name, safe='')}"
        status, _, data = self._ask_store("GET", path, {}, b"")
        there = json.loads(data)["generation"] if status == 200 else "0"
        query.pop(CONDITION, None)  # held to here: the store's own answer would only be another
        if status not in (200, 404):
            return True  # the store's trouble: let it say so
        self._wanted = wanted
        return str(there) == wanted

    def _forward(
        self, path: str, query: dict[str, str], body: bytes, name: str
    ) -> tuple[int, dict[str, str], bytes]:
        wanted, self._wanted = getattr(self, "_wanted", None), None
        status, headers, data = self._ask_store(self.command, path, query, body)
        started = re.search(r"upload_id=([^&]+)", headers.get("Location", ""))
        if started and wanted is not None:
            self.proxy.conditions[started[1]] = (name, wanted)
        return status, headers, data

    def _ask_store(
        self, method: str, path: str, query: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        sent = {key: self.headers[key] for key in SENT if key in self.headers}
        url = f"{path}?{urlencode(query)}" if query else path
        try:
            self.store.request(method, url, body or None, sent)
            answer = self.store.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        except (OSError, http.client.HTTPException):
            self.store.close()
            return 503, {}, error(503, "backendError")

    def _answer(
        self,
        seen: Seen,
        status: int,
        data: bytes,
        headers: dict[str, str] | None = None,
        fault: Fault | None = None,
    ) -> None:
        seen.status = status
        self.send_response(status)
        for key, value in (headers or {"Content-Type": "application/json"}).items():
            if key.lower() not in HOP:
                self.send_header(key, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if fault is not None and fault.flip_at is not None and len(data) > fault.flip_at:
            at = fault.flip_at
            data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        if fault is not None and fault.cut_after is not None:
            data = data[: fault.cut_after]
            self.close_connection = True
        self.wfile.write(data)


def what_for(method: str, path: str, query: dict[str, str], body: bytes) -> tuple[str, str]:
    """What a request is for, and the object's name ("" where it is about none)."""
    path = unquote(path) if "%2F" not in path else path
    rest = re.search(r"/b/[^/]+/o/?(.*)$", path)
    name = unquote(rest[1]) if rest else ""
    if "/upload/" in path:
        named = re.search(rb'"name": ?"([^"]+)"', body[:4096])
        found = query.get("name") or (named[1].decode() if named else "")
        return "write", found
    for verb in ("/copyTo/", "/rewriteTo/"):
        if verb in name:
            return "copy", name.partition(verb)[0]
    if method == "DELETE":
        return "delete", name
    if query.get("alt") == "media" or "/download/" in path:
        return "read", name
    return ("stat", name) if name else ("list", query.get("prefix", ""))


def error(status: int, reason: str) -> bytes:
    words = {"rateLimitExceeded": "Rate limit exceeded", "quotaExceeded": "Quota exceeded"}
    message = words.get(reason, f"made to fail: {reason}")
    body = {"code": status, "message": message, "errors": [{"reason": reason, "message": message}]}
    return json.dumps({"error": body}).encode()
