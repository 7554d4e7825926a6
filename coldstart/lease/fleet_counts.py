"""FleetCounts: what all daemons that share a Redis have counted, since that Redis was started.

Each adds what it counted since the last time, now and then, by a script that bears being run twice, and gets the sums
with the reply: whoever shows them asks nobody. Not exact: a daemon that is killed takes its last seconds with it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping

from coldstart.errors import TierError
from coldstart.redis_link import RedisLink, Script

log = logging.getLogger(__name__)

EVERY_SECONDS = 5.0
REMEMBERED_SECONDS = 3600.0  # that a push was made

# KEYS: sums, the last push of this daemon  ARGV: its number, life of the note in ms, name, increment, ...
_PUSH = Script("""
if redis.call('GET', KEYS[2]) ~= ARGV[1] then
  redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
  for i = 3, #ARGV, 2 do redis.call('HINCRBYFLOAT', KEYS[1], ARGV[i], ARGV[i + 1]) end
end
return redis.call('HGETALL', KEYS[1])
""")


class FleetCounts:
    """The sums, and this daemon's part in them. On one event loop."""

    def __init__(self, link: RedisLink, read: Callable[[], Mapping[str, float]]) -> None:
        """`read` says what this daemon has counted since it started."""
        self._link = link
        self._read = read
        self._id = secrets.token_hex(8)
        self._number = 0
        self._pushed: dict[str, float] = {}  # what is in the sums
        self._underway: dict[str, float] = {}  # what the push with the present number adds
        self.sums: Mapping[str, float] = {}  # as of the last push

    async def run(self) -> None:
        """Push for ever."""
        while True:
            await self.push()
            await asyncio.sleep(EVERY_SECONDS)

    async def push(self) -> None:
        """Add what was counted since the last time. Where Redis can't be asked, next time."""
        if not self._underway:
            now = self._read()
            grown = {name: value - self._pushed.get(name, 0) for name, value in now.items()}
            self._underway = {name: more for name, more in grown.items() if more}
            self._number += 1
        pairs = [part for name, more in self._underway.items() for part in (name, repr(more))]
        keys = [self._link.key("fleet", "counts"), self._link.key("fleet", f"push-{self._id}")]
        life_ms = int(REMEMBERED_SECONDS * 1000)
        try:
            reply = await self._link.script(_PUSH, keys, self._number, life_ms, *pairs)
        except TierError as exc:  # it may have arrived: the same again, under the same number
            log.debug("fleet counts not pushed: %s", exc)
            return
        for name, more in self._underway.items():
            self._pushed[name] = self._pushed.get(name, 0) + more
        self._underway = {}
        flat = [part.decode() for part in reply]
        self.sums = {name: float(value) for name, value in zip(flat[::2], flat[1::2], strict=True)}
