"""Heartbeat: keeps this process's leases alive while it compiles and publishes. One thread per process."""

from __future__ import annotations

import logging
import threading
import time

from coldstart.client.client import CacheClient
from coldstart.errors import ColdstartError, LeaseLost

log = logging.getLogger("coldstart")


class Heartbeat:
    """Renews every started lease until it is stopped or lost.

    XLA compiles with the GIL released, so beats get through.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._leases: dict[
            str, tuple[CacheClient, float, float]
        ] = {}  # id: client, every, next beat
        self._thread: threading.Thread | None = None

    def start(self, client: CacheClient, lease_id: str, every_seconds: float) -> None:
        """From now on. Where no thread can be started, the lease runs out: that costs a duplicate compile."""
        with self._changed:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="coldstart-heartbeat", daemon=True)
                try:
                    thread.start()
                except RuntimeError as exc:
                    log.info("heartbeat: %s", exc)
                    return
                self._thread = thread
            self._leases[lease_id] = (client, every_seconds, time.monotonic() + every_seconds)
            self._changed.notify()

    def stop(self, lease_id: str) -> None:
        """Forget a lease; unknown ones are fine."""
        with self._changed:
            self._leases.pop(lease_id, None)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._leases:
                    self._changed.wait()
                    continue
                lease_id, (client, every, due) = min(
                    self._leases.items(), key=lambda item: item[1][2]
                )
                left = due - time.monotonic()
                if left > 0:
                    self._changed.wait(left)
                    continue
                self._leases[lease_id] = (client, every, time.monotonic() + every)
            try:
                client.renew(lease_id)
            except LeaseLost:
                self.stop(lease_id)
                log.info("lease %s went to somebody else; the compile goes on", lease_id[:8])
            except ColdstartError as exc:
                log.info("heartbeat: %s", exc)
            except Exception:  # whatever it is, the other leases have no other thread
                log.exception("heartbeat of lease %s", lease_id[:8])
