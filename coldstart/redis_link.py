"""RedisLink: one Redis, for whoever keeps something in it: connections, credentials, deadlines, and whether it is up.

It and redis_place.py alone know the client library. Every command ends within its deadline, as an answer or as one of:

    TierTimeout   silence
    TierFull      it has no room and may evict nothing
    BreakerOpen   it was found down a moment ago: not asked again by callers, only in the background
    TierError     anything else, in words

A link that goes down is asked again by a task of its own until it answers; nobody has to restart anything.
`key()` puts everything about one artifact under one hash tag: scripts over several of its keys work on a cluster,
whose nodes are followed when they say that a slot is elsewhere (MOVED), or on its way and a key already there (ASK).
While some keys of a command have moved and others haven't, or none of several is there, nobody can answer it: it is
asked again for a while (TRYAGAIN), and then fails without anything against the server. Sentinels are not followed.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from coldstart.errors import BreakerOpen, TierError, TierFull, TierTimeout
from coldstart.redis_place import (
    MOST_CONNECTIONS,
    Redis,
    RedisPlace,
    disconnect,
    key_slot,
    open_client,
)
from coldstart.redis_place import exceptions as errors

log = logging.getLogger(__name__)

T = TypeVar("T")
Send = Callable[..., Awaitable[Any]]  # one command, to one node
FIRST_PROBE_SECONDS, MOST_PROBE_SECONDS = 0.1, 2.0  # between two looks at a Redis that is down
LISTEN_SECONDS = 5.0  # a subscription that is silent for so long is asked whether it lives
SHOWN_SECONDS = 60.0  # a refused write is part of the state for so long
MOST_MOVES = 3
TRY_AGAIN_SECONDS = (
    0.02  # before the first time; the pause doubles, up to a half of the command's time in all
)
SCAN_COUNT = 500  # keys looked at in one step: others wait for no more than a few ms
RETIRED_SECONDS = 30.0  # longer than any command lasts
_PLACE = re.compile(r"(?:MOVED |ASK )?(\d+) (\S*):(\d+)")


@dataclass(frozen=True, slots=True)
class Script:
    """Lua, run by its hash."""

    text: str

    @property
    def sha(self) -> str:
        return hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


class RedisLink:
    """One Redis. Nothing is opened before the first call. On one event loop."""

    def __init__(
        self,
        place: RedisPlace,
        *,
        on_retry: Callable[[str], None] = lambda outcome: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_retry` is told how a second try of a command ended: ok or error."""
        self.place = place
        self.on_change: list[Callable[[str], None]] = []  # told `trouble` when it goes down or up
        self._on_retry = on_retry
        self._now = now
        self._clients: dict[tuple[str, int], Redis] = {}
        self._retired: set[Redis] = set()
        self._turns = asyncio.Semaphore(MOST_CONNECTIONS)
        self._home: dict[int, tuple[str, int]] = {}  # slot -> node, where it isn't ours
        self._down: tuple[str, float] | None = None  # why and since when
        self._refused: tuple[str, float] | None = None  # the last write that was refused, and when
        self._tasks: set[asyncio.Task[None]] = set()
        self._probing = False
        self._closed = False

    @property
    def up(self) -> bool:
        """False while it is known not to answer."""
        return self._down is None

    @property
    def trouble(self) -> str:
        """What is wrong, for people; "" where nothing is."""
        if self._down is not None:
            words, since = self._down
            return f"down for {self._now() - since:.0f} s: {words}"
        if self._refused is not None and self._now() - self._refused[1] < SHOWN_SECONDS:
            return self._refused[0]
        return ""

    def key(self, key: str, part: str) -> str:
        """The name of one part of what is kept about `key`; all its parts are in one slot."""
        return f"{self.place.prefix}:1:{{{key}}}:{part}"

    def channel(self, name: str) -> str:
        return f"{self.place.prefix}:1:{name}"

    def start(self) -> None:
        """Look whether it is there, in the background. For a daemon that wants to say so before anybody asks."""
        self._task(self._look())

    async def call(self, *command: Any, seconds: float | None = None) -> Any:
        """One command. Its reply as bytes, integers, None and lists of those."""
        key = command[1] if len(command) > 1 and isinstance(command[1], str) else ""
        return await self._run(command[0], key, seconds, lambda send: send(*command))

    async def script(self, script: Script, keys: list[str], *arguments: Any) -> Any:
        """A script over keys of one slot. It must bear being run twice: a lost reply is asked for again."""

        async def run(send: Send) -> Any:
            try:
                return await send("EVALSHA", script.sha, len(keys), *keys, *arguments)
            except errors.NoScriptError:
                return await send("EVAL", script.text, len(keys), *keys, *arguments)

        return await self._run("EVAL", keys[0], None, run)

    async def names(self, pattern: str) -> AsyncIterator[str]:
        """Names of keys, on every node; one may come twice. For upkeep."""
        for node in await self._nodes():
            cursor: Any = 0
            while True:

                async def step(_: Send, node: tuple[str, int] = node, at: Any = cursor) -> Any:
                    return await self._client(node).execute_command(
                        "SCAN", at, "MATCH", pattern, "COUNT", SCAN_COUNT
                    )

                cursor, found = await self._run("SCAN", "", None, step)
                for name in found:
                    yield name.decode(errors="replace")
                if int(cursor) == 0:
                    break

    async def _nodes(self) -> list[tuple[str, int]]:
        """Every node that has keys: one, or a cluster's masters."""
        try:
            slots = await self.call("CLUSTER", "SLOTS")
        except TierTimeout:
            raise
        except TierError as exc:
            if "cluster support disabled" not in str(exc):
                raise
            slots = []
        nodes = [(place[0].decode() or self.place.host, int(place[1])) for _, _, place, *_ in slots]
        return list(dict.fromkeys(nodes)) or [(self.place.host, self.place.port)]

    def listen(
        self, channel: str, heard: Callable[[bytes], None], began: Callable[[], None]
    ) -> None:
        """Until `close`: `heard` for each message; `began` whenever messages may have been missed before."""
        self._task(self._listen(channel, heard, began))

    async def close(self) -> None:
        """Idempotent."""
        self._closed = True
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in (*self._clients.values(), *self._retired):
            await disconnect(client)
        self._clients.clear()
        self._retired.clear()
        await asyncio.sleep(
            0
        )  # the loop may end with us: connections that were cut close at its next turn

    # --- one command ---------------------------------------------------------------------------

    async def _run(
        self,
        what: str,
        key: str,
        seconds: float | None,
        work: Callable[[Send], Awaitable[T]],
    ) -> T:
        if self._closed:
            raise TierError(f"redis: the link to {self.place} is closed")
        if self._down is not None:
            raise BreakerOpen(f"redis: {what} not tried, {self.place} is {self.trouble}")
        limit = self.place.reply_seconds if seconds is None else seconds
        try:
            async with asyncio.timeout(limit), self._turns:
                return await self._twice(key, limit / 2, work)
        except (TimeoutError, errors.TimeoutError) as exc:
            words = f"no answer within {limit:g} s"
            self._fell(words)
            raise TierTimeout(f"redis: {what} at {self.place}: {words}") from exc
        except (errors.ConnectionError, OSError) as exc:
            self._fell(_words(exc))
            raise TierError(f"redis: {what} at {self.place}: {_words(exc)}") from exc
        except errors.RedisError as exc:
            raise self._translated(what, exc) from exc

    async def _twice(self, key: str, seconds: float, work: Callable[[Send], Awaitable[T]]) -> T:
        """Once more where the connection broke: it may have been an old one, or its token."""
        try:
            return await self._settled(key, seconds, work)
        except errors.TimeoutError:
            raise
        except (errors.ConnectionError, OSError):
            self._renew()
            try:
                done = await self._settled(key, seconds, work)
            except BaseException:
                self._on_retry("error")
                raise
            self._on_retry("ok")
            return done

    async def _settled(self, key: str, seconds: float, work: Callable[[Send], Awaitable[T]]) -> T:
        """Once its keys are on one node, if they are within `seconds`."""
        pause = TRY_AGAIN_SECONDS
        until = self._now() + seconds
        while True:
            try:
                return await self._routed(key, work)
            except errors.ResponseError as exc:
                if not _says(exc, errors.TryAgainError, "TRYAGAIN"):
                    raise
                if self._now() + pause > until:
                    raise TierError(
                        f"redis: {self.place}: a slot of the cluster is being moved, with what was asked for"
                    ) from exc
            await asyncio.sleep(pause)
            pause *= 2

    async def _routed(self, key: str, work: Callable[[Send], Awaitable[T]]) -> T:
        """At the node that has `key`. Where a cluster says that a slot lives is remembered."""
        slot = key_slot(key.encode()) if key and self._home else -1
        node = self._home.get(slot, (self.place.host, self.place.port))
        asking = False
        for _ in range(MOST_MOVES):
            try:
                return await work(self._sender(node, asking))
            except errors.ResponseError as exc:
                moved = _says(exc, errors.MovedError, "MOVED")
                asking = not moved and _says(exc, errors.AskError, "ASK")
                place = _PLACE.match(str(exc)) if moved or asking else None
                if place is None:
                    raise
                node = (place[2] or node[0], int(place[3]))
                if moved:
                    self._home[int(place[1])] = node
        raise TierError(f"redis: {self.place}: the cluster's slots move faster than we follow")

    def _sender(self, node: tuple[str, int], asking: bool) -> Send:
        """Commands to that node; `asking`: it hasn't got the slot yet, and lets in who says to know that."""
        client = self._client(node)
        if not asking:
            return client.execute_command

        async def send(*command: Any) -> Any:
            both = client.pipeline(transaction=False)  # on one connection, nothing between them
            both.execute_command("ASKING")
            both.execute_command(*command)
            _, reply = await both.execute(raise_on_error=False)
            if isinstance(reply, Exception):
                raise reply
            return reply

        return send

    def _translated(self, what: str, exc: errors.RedisError) -> TierError:
        words = _words(exc)
        if type(exc).__name__ == "OutOfMemoryError" or "OOM command" in words:
            self._refused = (
                "full: it may evict nothing (noeviction) and refuses writes",
                self._now(),
            )
            return TierFull(f"redis: {what} at {self.place}: no room: {words}")
        if isinstance(exc, errors.ReadOnlyError) or "read only replica" in words:
            self._refused = ("read-only: a replica, which refuses writes", self._now())
        return TierError(f"redis: {what} at {self.place}: {words}")

    def _client(self, node: tuple[str, int]) -> Redis:
        if node not in self._clients:
            self._clients[node] = open_client(replace(self.place, host=node[0], port=node[1]))
        return self._clients[node]

    def _renew(self) -> None:
        """From here on new connections only, with what the password file says now, by way of the first node."""
        self._home.clear()
        for client in self._clients.values():
            self._retired.add(client)
            self._task(self._retire(client))
        self._clients.clear()

    async def _retire(self, client: Redis) -> None:
        await disconnect(client, in_use=False)  # what still runs on it finds out by itself
        await asyncio.sleep(RETIRED_SECONDS)
        await disconnect(client)
        self._retired.discard(client)

    # --- down and up again ---------------------------------------------------------------------

    def _fell(self, words: str) -> None:
        if self._down is None:
            self._down = (words, self._now())
            self._tell()
        if not self._probing and not self._closed:
            self._probing = True
            self._task(self._probe())

    async def _look(self) -> None:
        with contextlib.suppress(TierError):
            await self.call("PING")

    async def _probe(self) -> None:
        pause = FIRST_PROBE_SECONDS
        try:
            while True:
                await asyncio.sleep(
                    pause * random.uniform(0.7, 1.3)
                )  # a fleet must not knock as one
                pause = min(2 * pause, MOST_PROBE_SECONDS)
                words = await self._knock()
                if words and self._down is not None:
                    self._down = (words, self._down[1])
                    continue
                self._down = None
                self._renew()
                self._tell()
                return
        finally:
            self._probing = False

    async def _knock(self) -> str:
        """What is wrong with it now; "" if it answers."""
        client = open_client(self.place)
        try:
            async with asyncio.timeout(self.place.connect_seconds + self.place.reply_seconds):
                await client.execute_command("PING")
        except (errors.RedisError, OSError, TimeoutError) as exc:
            return _words(exc)
        finally:
            await disconnect(client)
        return ""

    def _tell(self) -> None:
        words = "" if self._down is None else self._down[0]
        for tell in self.on_change:
            tell(words)

    # --- messages ------------------------------------------------------------------------------

    async def _listen(
        self, channel: str, heard: Callable[[bytes], None], began: Callable[[], None]
    ) -> None:
        pause = FIRST_PROBE_SECONDS
        while True:
            try:
                await self._hear(channel, heard, began)
            except (errors.RedisError, OSError, TimeoutError) as exc:
                log.debug("redis: subscription to %s: %s", channel, _words(exc))
            await asyncio.sleep(pause * random.uniform(0.7, 1.3))
            pause = FIRST_PROBE_SECONDS if self.up else min(2 * pause, MOST_PROBE_SECONDS)

    async def _hear(
        self, channel: str, heard: Callable[[bytes], None], began: Callable[[], None]
    ) -> None:
        """Messages until the connection breaks or is silent."""
        client = open_client(self.place)
        listener = client.pubsub()
        try:
            async with asyncio.timeout(self.place.connect_seconds + self.place.reply_seconds):
                await listener.subscribe(channel)
            asked = False
            while True:
                message = await listener.get_message(timeout=LISTEN_SECONDS)
                if message is not None:
                    asked = False
                    if message["type"] == "message":
                        heard(message["data"])
                    elif message["type"] == "subscribe":
                        began()  # only now: what is sent before the server has it, is missed
                elif asked:
                    return  # silent although it was asked
                else:
                    asked = True
                    await listener.ping()
        finally:
            with contextlib.suppress(errors.RedisError, OSError):
                await listener.aclose()
            await disconnect(client)

    def _task(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _says(exc: errors.ResponseError, kind: type[errors.RedisError], word: str) -> bool:
    """By its class or by its first word: releases of the library differ."""
    return isinstance(exc, kind) or str(exc).startswith(word + " ")


def _words(exc: BaseException) -> str:
    """The first line: the library's messages can be whole paragraphs."""
    return (str(exc).strip() or type(exc).__name__).splitlines()[0][:200]
