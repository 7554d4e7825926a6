"""History: what a log says of each compile, each fault and each process, for whoever judges it. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from chaos_log import Event

NEVER = float("inf")
MACHINES = ("starved", "stall")  # kinds of faults that are nobody's


@dataclass
class Compile:
    """One compile of one key."""

    key: str
    who: str
    daemon: str
    ask: int
    nonce: str
    asked: float
    begin: float
    sent: float  # when the call was begun that was answered last; `asked` where none was
    answer: str = ""  # lease, wait, refused, hit; "": none came
    answered: float = 0.0
    end: float = NEVER
    outcome: str = ""  # "": the process didn't come to say so
    reason: str = ""
    digest: str = ""  # what it sent; "": it didn't
    published: float = NEVER  # acknowledged
    adopted: bool = (
        False  # acknowledged under another digest, which that daemon's own disk needn't have
    )
    unpublished: float = NEVER  # refused, or given up

    @property
    def leased(self) -> bool:
        return self.answer == "lease"

    def __str__(self) -> str:
        return (
            f"{self.nonce} at {self.daemon}: asked {self.asked:.3f}, {self.answer or 'no answer'}, compiled "
            f"{self.begin:.3f} to {self.end:.3f}, {self.outcome} {self.reason}, published {self.published:.3f}"
        )


@dataclass(frozen=True)
class Fault:
    """Something that was wrong from `begin` to `end`."""

    number: int
    target: str
    kind: str
    begin: float
    end: float
    client: str = ""  # the process, where a client was meant

    def __str__(self) -> str:
        return f"{self.target} {self.kind} {self.begin:.3f} to {self.end:.3f}"


@dataclass
class Ack:
    """A publish that was acknowledged."""

    key: str
    who: str
    daemon: str
    sending: float
    at: float
    mine: str
    digest: str  # the authoritative one, by that daemon's word


@dataclass
class History:
    """One run."""

    events: list[Event]
    began: float = 0.0
    leases: str = "redis"  # which store keeps them
    over: float = NEVER  # no fault any more, no client either
    daemon_of: dict[str, str] = field(default_factory=dict)  # by client process
    compiles: dict[str, list[Compile]] = field(default_factory=lambda: defaultdict(list))  # by key
    acks: dict[str, list[Ack]] = field(default_factory=lambda: defaultdict(list))  # by key
    digests: dict[str, str] = field(default_factory=dict)  # nonce -> digest of what was sent
    faults: list[Fault] = field(default_factory=list)
    gone: dict[str, int] = field(default_factory=dict)  # client process -> exit status

    def of(self, *what: str) -> Iterator[Event]:
        return (event for event in self.events if event.what in what)

    def faults_of(self, targets: Iterable[str], begin: float, end: float) -> list[Fault]:
        """Those of these targets that were there at any time from `begin` to `end`."""
        wanted = set(targets)
        return [
            fault
            for fault in self.faults
            if fault.target in wanted and fault.begin <= end and fault.end >= begin
        ]

    def faults_of_client(self, who: str, begin: float, end: float) -> list[Fault]:
        """What was done to that process, a machine that didn't run it included."""
        return [
            fault
            for fault in self.faults
            if fault.client == who and fault.begin <= end and fault.end >= begin
        ]


def read(events: list[Event]) -> History:
    """The history that a log tells."""
    history = History(events)
    open_: dict[tuple[str, int], dict[str, Event]] = defaultdict(dict)
    compiling: dict[tuple[str, int], Compile] = {}
    by_nonce: dict[str, Compile] = {}
    lookups: dict[str, tuple[str, int]] = {}
    sending: dict[str, tuple[float, str]] = {}  # lookup -> when, nonce
    for event in events:
        who = event.who
        place = (who, event.facts.get("ask", 0))
        if event.what == "begun":
            history.began = event.at
            history.leases = event.facts.get("leases", "redis")
        elif event.what == "over":
            history.over = event.at
        elif event.what == "started":
            history.daemon_of[who] = event.daemon
        elif event.what in ("asked", "answered"):
            open_[place][event.what] = event
        elif event.what == "compiling":
            asked, answered = open_[place]["asked"], open_[place].get("answered")
            one = Compile(
                event.key,
                who,
                history.daemon_of[who],
                event.ask,
                event.nonce,
                asked.at,
                event.at,
                answered.sent if answered else asked.at,
            )
            if answered:
                one.answer, one.answered = answered.kind, answered.at
            compiling[place] = by_nonce[event.nonce] = one
            history.compiles[event.key].append(one)
        elif event.what == "compiled":
            compiling[place].end = event.at
        elif event.what == "ended":
            lookups[event.lookup] = place
            if place in compiling:
                compiling[place].outcome = event.outcome
                compiling[place].reason = event.reason
        elif event.what == "sending":
            history.digests[event.nonce] = event.mine
            sending[event.lookup] = (event.at, event.nonce)
            by_nonce[event.nonce].digest = event.mine
        elif event.what == "unpublished":
            by_nonce[sending[event.lookup][1]].unpublished = event.at
        elif event.what == "published":
            when, nonce = sending[event.lookup]
            if event.kept:  # nothing was stored, and the daemon said so
                by_nonce[nonce].unpublished = event.at
                continue
            by_nonce[nonce].published = event.at
            by_nonce[nonce].adopted = event.digest != event.mine
            daemon = history.daemon_of[who]
            ack = Ack(event.key, who, daemon, when, event.at, event.mine, event.digest)
            history.acks[event.key].append(ack)
        elif event.what == "client-gone":
            history.gone[event.client] = event.code
    # What was done on purpose explains before what the machine did.
    history.faults = sorted(_faults(history), key=lambda fault: fault.kind in MACHINES)
    return history


def _faults(history: History) -> Iterator[Fault]:
    begun: dict[int, Event] = {}
    for event in history.of("fault", "healed", "stalled", "starved"):
        if event.what == "fault":
            begun[event.number] = event
        elif event.what == "healed":
            first = begun.pop(event.number)
            client = event.facts.get("client", "")
            yield Fault(event.number, event.target, event.kind, first.at, event.at, client)
        elif event.what == "starved":
            yield Fault(-1, event.target, "starved", event.since, event.at)
        else:
            yield Fault(-1, "machine", "stall", event.since, event.at, event.who)
    for number, first in begun.items():
        client = first.facts.get("client", "")
        yield Fault(number, first.target, first.kind, first.at, NEVER, client)
