"""The client process of `bench hit`'s tiers: one JAX process that obtains the same programs from everywhere, in turns.

    python -m coldstart.bench.tiers_client --work WORK.json

A program is an operation with a constant of the wanted size in it, half of which compresses, so its executable is a
little larger. It is compiled once, under the hook and with JAX's own cache switched on: both get the same executable.
The daemon's artifact of it is then published to the other daemons. Three measurements, each in turns:

    program   the hook or JAX's cache gives the executable, as a start would: the one function in which JAX asks
    bytes     asked for, read, checked and decompressed by the plain client; and the file by hand
    rate      the same, several at once

The last line of stdout is JSON: `sizes`, a list of `{raw_bytes, payload_bytes, stock_bytes, places: {name: figures}}`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from coldstart import artifact, wire
from coldstart.artifact import Artifact
from coldstart.bench.caches import use_cache
from coldstart.bench.calls import Reader, plain_read, publish
from coldstart.bench.progress import note
from coldstart.bench.start import Retrieved, Seam
from coldstart.errors import ColdstartError
from coldstart.identity.key import KeyRecord
from coldstart.outcomes import Outcome

PLAIN, STOCK = "plain", "stock"
IN_FLIGHT = 4

Figures = dict[str, list[float]]


@dataclass(frozen=True, slots=True)
class Place:
    """A daemon and how its bytes come."""

    name: str
    address: str
    by_path: bool


@dataclass(frozen=True, slots=True)
class Work:
    """What is measured; written by the command, read by this process."""

    places: tuple[Place, ...]  # the first has a disk, by path
    store: str  # that disk
    stock: str  # folder of JAX's own cache
    sizes: tuple[int, ...]  # bytes
    repeats: int  # of a program; of bytes five times as many
    seconds: float  # for each rate
    record: str  # where progress is noted

    @property
    def steps(self) -> int:
        """How often progress is noted."""
        rounds = (1 + self.repeats) * (1 + len(self.places)) + 5 * self.repeats + 1
        return len(self.sizes) * (rounds + 1 + len(self.places))

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Work:
        said = json.loads(path.read_text())
        places = tuple(Place(**place) for place in said["places"])
        return cls(**{**said, "places": places, "sizes": tuple(said["sizes"])})


@dataclass(frozen=True, slots=True)
class Stored:
    """A program and what became of it."""

    lower: Callable[[], Any]
    record: KeyRecord
    made: Artifact
    path: Path
    stock_bytes: int


def program(size: int) -> Callable[[], Any]:
    """Lowers, anew each time, a program whose executable holds `size` bytes that JAX can't leave out."""
    import jax

    count = max(2, size // 4)
    noise = np.frombuffer(random.Random(size).randbytes(4 * (count // 2)), np.int32)
    constant = np.concatenate([noise, np.zeros(count - len(noise), np.int32)])

    def lower() -> Any:
        jax.clear_caches()  # nor does it know what it compiled before
        taken = jax.ShapeDtypeStruct((count,), np.int32)
        return jax.jit(lambda values: values ^ constant).lower(taken)

    return lower


@contextmanager
def hooked(place: Place) -> Iterator[None]:
    """The hook of this process asks that daemon."""
    import coldstart

    name = "COLDSTART_VOLUME_ROOT"
    if not place.by_path:
        os.environ[name] = "/nowhere"  # where no file of any daemon lies
    try:
        if not coldstart.install(place.address, strict=True):
            raise ColdstartError("the hook was not installed")
        yield
    finally:
        coldstart.uninstall()
        os.environ.pop(name, None)


class Client:
    """All measurements of one piece of work."""

    def __init__(self, work: Work) -> None:
        from coldstart.client import jax_internals

        self.work = work
        self._done = partial(note, Path(work.record))
        use_cache("stock", work.stock)
        self._compiles = jax_internals.count_backend_compiles()
        self._retrieved = Retrieved()
        self.figures: list[dict[str, Figures]] = [
            {name: {} for name in (PLAIN, *(place.name for place in work.places), STOCK)}
            for _ in work.sizes
        ]

    def run(self) -> list[dict[str, Any]]:
        stored = [self._fill(size) for size in self.work.sizes]
        for number in range(1 + self.work.repeats):
            turns: list[Place | None] = [None, *self.work.places]
            for place in turns if number % 2 else turns[::-1]:
                for at, one in enumerate(stored):
                    self._program(place, one, self.figures[at], keep=number > 0)
                    self._done()
        for at, one in enumerate(stored):
            self._bytes(one, self.figures[at])
            self._rates(one, self.figures[at])
        return [
            {
                "raw_bytes": one.made.header.raw_bytes,
                "payload_bytes": one.made.header.payload_bytes,
                "stock_bytes": one.stock_bytes,
                "places": {name: _said(of) for name, of in figures.items()},
            }
            for one, figures in zip(stored, self.figures, strict=True)
        ]

    # --- filling -------------------------------------------------------------------------------

    def _fill(self, size: int) -> Stored:
        import coldstart

        before = self._files()
        lower = program(size)
        first, *others = self.work.places
        with hooked(first):
            lower().compile()
            if not coldstart.flush():
                raise ColdstartError(f"{first.name} did not take what was compiled")
        (path,) = self._files()[0] - before[0]
        made = artifact.open_file(path)
        reader = Reader(first.address)
        record = wire.record_from_pb(reader.client.record(made.header.key).record)
        reader.close()
        for place in others:
            if place.address != first.address:
                reader = Reader(place.address)
                publish(reader.client, record, made)
                reader.close()
        stock = self._files()[1] - before[1]
        return Stored(lower, record, made, path, sum(file.stat().st_size for file in stock))

    def _files(self) -> tuple[set[Path], set[Path]]:
        """Artifacts of the first place, and what JAX's own cache holds."""
        own = set(Path(self.work.store).rglob("*.csa"))
        return own, {path for path in Path(self.work.stock).rglob("*-cache") if path.is_file()}

    # --- a program -----------------------------------------------------------------------------

    def _program(
        self, place: Place | None, one: Stored, figures: dict[str, Figures], *, keep: bool
    ) -> None:
        """Obtain it once, by a connection that has been used before; None: by JAX's own cache."""
        compiles = self._compiles.count
        if place is None:
            key, load = self._timed(one.lower, lambda: self._retrieved.seconds)
        else:
            with hooked(place):
                one.lower().compile()
                before = _report()
                key, load = self._timed(one.lower, lambda: _loading(_report()))
                if _report().count(Outcome.HIT) != 1 + before.count(Outcome.HIT):
                    raise ColdstartError(f"{place.name}: not every program was hit: {_report()}")
        if self._compiles.count != compiles:
            raise ColdstartError(f"{place.name if place else STOCK}: what is stored was compiled")
        if keep:
            of = figures[place.name if place else STOCK]
            of.setdefault("program", []).append(key + load)
            of.setdefault("load", []).append(load)

    def _timed(self, lower: Callable[[], Any], load: Callable[[], float]) -> tuple[float, float]:
        """Seconds in the seam, in two parts: until the bytes are read and loaded, and that."""
        from coldstart.client import jax_internals

        lowered = lower()
        seam = Seam(jax_internals)
        before = load()
        try:
            lowered.compile()
        finally:
            seam.close()
        spent = load() - before
        return seam.seconds - spent, spent

    # --- bytes ---------------------------------------------------------------------------------

    def _bytes(self, one: Stored, figures: dict[str, Figures]) -> None:
        readers = {place.name: self._reader(place) for place in self.work.places}
        for number in range(5 * self.work.repeats + 1):
            seconds, wanted = plain_read(one.path, one.made)
            found = {PLAIN: seconds}
            for name, reader in readers.items():
                found[name], raw = reader.hit(one.record)
                if raw != wanted:
                    raise ColdstartError(f"{name}: a hit gave other bytes")
            for name, seconds in found.items() if number else ():
                figures[name].setdefault("bytes", []).append(seconds)
            self._done()
        for reader in readers.values():
            reader.close()

    def _rates(self, one: Stored, figures: dict[str, Figures]) -> None:
        """Hits a second, IN_FLIGHT at once, each over a connection of its own."""

        def plain() -> None:
            plain_read(one.path, one.made)

        figures[PLAIN]["rate"] = [self._rate([plain] * IN_FLIGHT)]
        self._done()
        for place in self.work.places:
            readers = [self._reader(place) for _ in range(IN_FLIGHT)]
            hits = [partial(reader.hit, one.record) for reader in readers]
            figures[place.name]["rate"] = [self._rate(hits)]
            for reader in readers:
                reader.close()
            self._done()

    def _rate(self, calls: Sequence[Callable[[], Any]]) -> float:
        errors: list[BaseException] = []
        counts = [0] * len(calls)
        until = time.perf_counter() + self.work.seconds

        def go(at: int) -> None:
            try:
                while time.perf_counter() < until or not counts[at]:
                    calls[at]()
                    counts[at] += 1
            except BaseException as exc:
                errors.append(exc)

        began = time.perf_counter()
        threads = [threading.Thread(target=go, args=(at,)) for at in range(len(calls))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return sum(counts) / (time.perf_counter() - began)

    def _reader(self, place: Place) -> Reader:
        return Reader(place.address, by_path=place.by_path)


def _report() -> Any:
    import coldstart

    report = coldstart.report()
    assert report is not None
    return report


def _loading(report: Any) -> float:
    return float(report.fetch_seconds + report.load_seconds)


def _said(of: Figures) -> dict[str, float | None]:
    """Medians in seconds, the slowest hundredth, hits a second; None: not measured there."""
    walls = sorted(of.get("bytes", ()))
    return {
        "p50": statistics.median(walls) if walls else None,
        "p99": walls[min(len(walls) - 1, int(0.99 * len(walls)))] if walls else None,
        "hits_per_second": of["rate"][0] if "rate" in of else None,
        "program": statistics.median(of["program"]) if "program" in of else None,
        "load": statistics.median(of["load"]) if "load" in of else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="coldstart.bench.tiers_client")
    parser.add_argument("--work", type=Path, required=True)
    work = Work.read(parser.parse_args().work)
    print(json.dumps({"sizes": Client(work).run()}), flush=True)


if __name__ == "__main__":
    try:
        main()
    except ColdstartError as exc:
        sys.exit(str(exc))  # one line; the command says it
