"""Warming a plan: trace everything, ask for all keys at once, compile only what is missing, longest first.

    lower + identify every entry ──▶ one batch of keys ──▶ missing ones, longest first ──▶ all keys once more
          (workers)                    (no lease)           lease → compile → publish        (what is stored counts)

Leases balance several of these runs: what somebody else compiles is passed over and looked at again at the end. This
module has no JAX; the workers have (`worker.py`). One failed entry doesn't stop the others.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from coldstart.client.client import CacheClient
from coldstart.client.standings import KeyState, report_crash, standings
from coldstart.errors import ColdstartError, ConfigError
from coldstart.warmup.crew import GONE, Crew, Hand, how_it_ended
from coldstart.warmup.manifest import ManifestEntry
from coldstart.warmup.plan import Entry, Plan, entry_of, manifest_id
from coldstart.warmup.targets import Target

OUTCOMES = ("compiled", "reused", "failed", "refused", "unshareable")
IDLE_DEATHS = 3  # of workers that were at nothing: then something is wrong with this machine


class Progress(Protocol):
    """Told how far it is. `eta_seconds` is None as long as nobody knows."""

    def lowered(self, entry: Entry, done: int, total: int) -> None: ...

    def missing(self, count: int, reused: int) -> None: ...

    def settled(
        self, program: Program, done: int, total: int, eta_seconds: float | None
    ) -> None: ...


@dataclass(slots=True)
class Program:
    """One distinct key of a plan, or one entry that has none because it can't be lowered."""

    index: int  # of the entry that stands for it
    entry: Entry
    key: str = ""
    asked_key: str = ""  # before rewrites
    size: float = 0.0  # bytes of its module
    outcome: str = ""  # one of OUTCOMES; "" while open
    message: str = ""
    digest: str = ""
    compile_seconds: float = 0.0  # recorded, whoever compiled it
    lowered_by: int = -1  # number of the worker that has it in memory
    lease_id: str = ""


@dataclass(slots=True)
class Warmed:
    """What a run did."""

    plan: Plan
    target: Target
    manifest: str = ""
    entries: tuple[Entry, ...] = ()
    programs: list[Program] = field(default_factory=list)  # distinct ones, in the plan's order
    keys: dict[int, str] = field(default_factory=dict)  # entry -> key
    seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(
            ("trace", "identify", "compile", "publish", "wall", "cpu"), 0.0
        )
    )
    jobs: int = 0
    dry_run: bool = False

    def count(self, outcome: str) -> int:
        return sum(program.outcome == outcome for program in self.programs)

    @property
    def ok(self) -> bool:
        return not (self.count("failed") or self.count("refused"))

    def summary(self) -> dict[str, Any]:
        """The contract's JSON: counts are of distinct keys and add up to `distinct`."""
        counts = {outcome: self.count(outcome) for outcome in OUTCOMES}
        if self.dry_run:
            counts["missing"] = self.count("")
        return {
            "plan": self.plan.name,
            "target": self.target.name,
            "programs": len(self.entries),
            "distinct": len(self.programs),
            **counts,
            "seconds": {name: round(value, 3) for name, value in self.seconds.items()},
            "compile_seconds_covered": round(sum(p.compile_seconds for p in self.programs), 3),
            "manifest": self.manifest,
            "jobs": self.jobs,
            "dry_run": self.dry_run,
            "problems": [
                {"program": str(p.entry), "outcome": p.outcome, "message": p.message}
                for p in self.programs
                if p.message
            ],
        }

    def manifest_entries(self) -> list[ManifestEntry] | None:
        """One for each entry; None where one that can be shared is not stored."""
        by_key = {program.key: program for program in self.programs if program.key}
        found = []
        for index, entry in enumerate(self.entries):
            program = by_key.get(self.keys.get(index, ""))
            if program is None or not (program.digest or program.outcome == "unshareable"):
                return None
            key = program.key if program.digest else ""
            found.append(ManifestEntry(str(entry), key, program.digest, program.compile_seconds))
        return found


class Run:
    """One run of one plan. Call `warm` once."""

    def __init__(
        self,
        plan: Plan,
        target: Target,
        client: CacheClient,
        progress: Progress,
        *,
        environ: Mapping[str, str],
        jobs: int,
        known_seconds: Mapping[str, float] | None = None,
        dry_run: bool = False,
    ) -> None:
        self.result = Warmed(plan, target, jobs=jobs, dry_run=dry_run)
        self._client = client
        self._progress = progress
        self._known_seconds = known_seconds or {}
        self._by_index: dict[int, Program] = {}
        self._crew = Crew(
            plan, target, target.environment({**environ, "COLDSTART_ADDRESS": client.address})
        )
        self._idle_deaths = 0
        self._elsewhere: list[Program] = []  # somebody else is at them: looked at again at the end

    def warm(self) -> Warmed:
        """Raises ConfigError: plan and target don't go together. ColdstartError: it can't go on at all."""
        began, cpu_began = time.monotonic(), _cpu_seconds()
        try:
            with self._crew:
                entries = self._open()
                self._lower(entries)
                self._ask()
                if not self.result.dry_run:
                    self._compile()
                    self._verify()
        finally:
            self.result.seconds["wall"] = time.monotonic() - began
            self.result.seconds["cpu"] = _cpu_seconds() - cpu_began
        return self.result

    # --- before anything is asked ----------------------------------------------------------------

    def _open(self) -> tuple[Entry, ...]:
        """Hire one worker, which knows the entries, then as many as are useful."""
        self._crew.hire()
        while True:
            hand, event = self._crew.event()
            if event["event"] == "misuse":
                raise ConfigError(event["message"])
            if event["event"] == GONE:
                raise ColdstartError(
                    f"the worker ended before it was ready ({how_it_ended(event['code'])}): {hand.last_words()}"
                )
            hand.ready = True
            break
        entries = tuple(entry_of(name, dict(bucket)) for name, bucket in event["entries"])
        self.result.entries = entries
        self.result.manifest = manifest_id(self.result.plan, entries)
        self.result.jobs = min(self.result.jobs, len(entries))
        for _ in range(self.result.jobs - 1):
            self._crew.hire()
        return entries

    def _lower(self, entries: Sequence[Entry]) -> None:
        todo = list(range(len(entries)))
        programs: dict[str, Program] = {}
        done = 0
        while done < len(entries):
            for hand in self._free_hands():
                if todo:
                    hand.order(do="lower", entry=todo.pop(0))
            hand, event = self._next()
            kind, index = event["event"], event["entry"]
            if kind not in ("lowered", "unlowered") and not (kind == GONE and index is not None):
                continue
            done += 1
            hand.entry = None
            self._progress.lowered(entries[index], done, len(entries))
            if kind != "lowered":
                failed = Program(index, entries[index], outcome="failed", message=event["message"])
                programs[f"entry {index}"] = failed
                continue
            self._count(event)
            self.result.keys[index] = event["key"]
            unshareable = "unshareable" if event["refusal"] else ""
            message = f"{event['refusal']}: {event['message']}" if event["refusal"] else ""
            programs.setdefault(
                event["key"],
                Program(
                    index,
                    entries[index],
                    key=event["key"],
                    size=event["module_bytes"],
                    outcome=unshareable,
                    message=message,
                    lowered_by=hand.number,
                ),
            )
        self.result.programs = sorted(programs.values(), key=lambda program: program.index)
        self._by_index = {program.index: program for program in self.result.programs}

    def _ask(self) -> None:
        """One batch for all keys; what is stored is settled without loading it."""
        opened = self._open_programs()
        found = standings(self._client, [program.key for program in opened])
        for program in opened:
            standing = found[program.key]
            if standing.state is KeyState.PRESENT:
                program.outcome = "reused"
                program.digest, program.compile_seconds = standing.digest, standing.compile_seconds
        left = len(self._open_programs())
        self._progress.missing(left, len(opened) - left)

    # --- compiling -------------------------------------------------------------------------------

    def _compile(self) -> None:
        weights = self._weights()
        queue = sorted(self._open_programs(), key=lambda p: weights[p.index], reverse=True)
        total, began = len(queue), time.monotonic()
        while left := self._open_programs():
            for hand in self._free_hands():
                program = self._choose(hand, queue)
                if program is not None:
                    hand.open.add(program.index)
                    hand.order(do="obtain", entry=program.index, key=program.key)
            settled = self._handle(*self._next())
            if settled is not None:
                left.remove(settled)
                share = sum(weights[p.index] for p in left) / sum(weights.values())
                spent = time.monotonic() - began
                eta = spent * share / (1 - share) if share < 1 else None
                self._progress.settled(settled, total - len(left), total, eta)

    def _choose(self, hand: Hand, queue: list[Program]) -> Program | None:
        """The next for this worker: the longest that it has lowered, else the longest of all.

        Another run may have been at it since the batch, so its state is asked for once more.
        """
        while queue:
            own = [program for program in queue if program.lowered_by == hand.number]
            program = (own or queue)[0]
            queue.remove(program)
            state = standings(self._client, [program.key])[program.key].state
            if state is not KeyState.LEASED:
                return program
            self._elsewhere.append(program)
        return self._elsewhere.pop(0) if self._elsewhere else None

    def _handle(self, hand: Hand, event: dict[str, Any]) -> Program | None:
        """One event of this phase; returns a program that has ended."""
        kind, index = event["event"], event["entry"]
        program = self._by_index.get(-1 if index is None else index)
        if program is None:
            return None
        if kind == "compiling":
            program.lease_id = event["lease_id"]
        elif kind == "lowered":  # once more, by a worker that took it over
            self._count(event)
        elif kind in ("waiting", "compiled"):
            self._free(hand, program)
        elif kind in ("settled", GONE):
            self._free(hand, program)
            hand.open.discard(program.index)
            self._count(event)
            program.outcome = event.get("outcome", "failed")
            program.message = event.get("message", "")
            program.asked_key = program.key
            program.key = event.get("key", program.key)  # rewrites make another key of it
            return program
        return None

    def _verify(self) -> None:
        """What is stored now counts, whatever anybody said."""
        claimed = [p for p in self.result.programs if p.outcome in ("compiled", "reused")]
        found = standings(self._client, [program.key for program in claimed])
        for program in claimed:
            standing = found[program.key]
            program.digest, program.compile_seconds = standing.digest, standing.compile_seconds
            if standing.state is not KeyState.PRESENT:
                program.message = f"{program.outcome}, but not stored; the daemon's log says why"
                program.outcome, program.digest, program.compile_seconds = "failed", "", 0.0
        self._merge()

    def _merge(self) -> None:
        """Programs that rewrites made equal are one distinct program; that one of them was compiled is what counts."""
        by_key: dict[str, Program] = {}
        final = {p.asked_key or p.key: p.key for p in self.result.programs}
        for program in sorted(self.result.programs, key=lambda p: OUTCOMES.index(p.outcome)):
            by_key.setdefault(program.key or f"entry {program.index}", program)
        self.result.programs = sorted(by_key.values(), key=lambda p: p.index)
        self.result.keys = {index: final[key] for index, key in self.result.keys.items()}

    # --- workers ---------------------------------------------------------------------------------

    def _next(self) -> tuple[Hand, dict[str, Any]]:
        """The next event. A worker that died is replaced; what it was at comes as the event's entry."""
        hand, event = self._crew.event()
        if event["event"] == "ready":
            hand.ready = True
        elif event["event"] == "misuse":
            raise ColdstartError(f"workers disagree: {event['message']}")
        elif event["event"] == GONE:
            event |= self._died(hand, event["code"])
        return hand, event

    def _died(self, hand: Hand, code: int) -> dict[str, Any]:
        ended = how_it_ended(code)
        words = hand.last_words()
        hand.wait(0)
        if hand.entry is None:
            self._idle_deaths += 1
            if self._idle_deaths > IDLE_DEATHS:
                raise ColdstartError(f"workers keep ending ({ended}): {words}")
        message = f"its worker ended: {ended}" + (f": {words}" if words else "")
        for index in hand.open - {hand.entry}:  # it waited for these, or was about to publish them
            self._elsewhere.append(self._by_index[index])
        program = self._by_index.get(-1 if hand.entry is None else hand.entry)
        if program is not None and program.lease_id:
            report_crash(self._client, program.lease_id, message)
        self._crew.hire()
        return {"entry": hand.entry, "message": message}

    def _free_hands(self) -> list[Hand]:
        return [hand for hand in self._crew.hands if hand.ready and hand.entry is None]

    @staticmethod
    def _free(hand: Hand, program: Program) -> None:
        if hand.entry == program.index:
            hand.entry = None

    # --- bookkeeping -----------------------------------------------------------------------------

    def _open_programs(self) -> list[Program]:
        return [program for program in self.result.programs if not program.outcome]

    def _weights(self) -> dict[int, float]:
        """What order and ETA go by: recorded seconds; where there are none, the module's size in their place."""
        known = self._known_seconds
        recorded = [p for p in self.result.programs if known.get(p.key)]
        sizes = sum(p.size for p in recorded)
        rate = sum(known[p.key] for p in recorded) / sizes if sizes else 1.0
        return {p.index: known.get(p.key) or (p.size + 1) * rate for p in self.result.programs}

    def _count(self, event: Mapping[str, Any]) -> None:
        for name in ("trace", "identify", "compile", "publish"):
            self.result.seconds[name] += event.get(f"{name}_seconds", 0.0)


def _cpu_seconds() -> float:
    """CPU time of this process and of the children that have ended."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
