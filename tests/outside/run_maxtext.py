"""MaxText's small trainer, twice under Coldstart: the second run compiles nothing and trains the very same weights.

    python3 tests/outside/run_maxtext.py [--keep DIR] [--json FILE]       or `make test-outside`

A program that nobody here wrote, unmodified: 4 layers, 3 steps, 16 virtual CPU devices. It runs without a cache, twice
under Coldstart and twice under JAX's own cache; then as two processes of 8 devices, again under both. Prints what each
run compiled and whether it trained what the others trained; exit 1 when something is not as it must be.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environment import environment

HERE = Path(__file__).resolve().parent
MAXTEXT = ("maxtext[tpu]==0.2.5", "jax==0.11.2", "jaxlib==0.11.2", "libtpu==0.0.48")
DEVICES = 16
COORDINATOR_PORT = 1234  # fixed in MaxText
RUN_SECONDS = 400
START_SECONDS = 30
MODEL = (
    "hardware=cpu",
    "run_name=small",
    "base_num_decoder_layers=4",
    "base_emb_dim=256",
    "base_mlp_dim=512",
    "base_num_query_heads=4",
    "base_num_kv_heads=4",
    "head_dim=64",
    "vocab_size=1024",
    "attention=dot_product",
    "dataset_type=synthetic",
    "per_device_batch_size=1",
    "max_target_length=128",
    "steps=3",
    "enable_checkpointing=false",
    "jax_cache_dir=",  # its default is a folder under HOME; here each run says which cache it uses
)
# Cuts a batch up among a process's own devices: the cuts are in the program, and each process has its own.
APART = {"jit(_multi_slice)"}
# Sums over devices may be taken in another order by two processes; single precision over some thousand terms.
LOSS_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Run:
    """One process of one run: what it asked for, what it compiled, what it trained."""

    programs: list[dict[str, Any]]
    state: dict[str, str]  # place in the state → digest of the bytes there
    metrics: list[dict[str, float]]  # of each step; only the first process writes them
    wall: float
    said: str  # the hook's line at exit

    @property
    def compiles(self) -> int:
        return sum(program["compiles"] for program in self.programs)

    @property
    def compile_seconds(self) -> float:
        return sum(program["compile_seconds"] for program in self.programs)

    @property
    def losses(self) -> list[float]:
        return [step["learning/loss"] for step in self.metrics]


class Trainer:
    """Starts the trainer in processes of its own."""

    def __init__(self, python: Path, folder: Path) -> None:
        self.python, self.folder = python, folder
        found = subprocess.run(
            # Imports all of it, so that the first run that is measured doesn't pay for a cold disk.
            [
                python,
                "-c",
                "import maxtext, maxtext.trainers.pre_train.train; print(maxtext.__file__)",
            ],
            env=plain_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            check=True,
        )
        self.config = Path(found.stdout.split()[-1]).parent / "configs" / "base.yml"

    def run(self, name: str, cache: dict[str, str], processes: int = 1) -> list[Run]:
        """All ranks of one run, each with DEVICES / processes devices."""
        extra = [] if processes > 1 else ["skip_jax_distributed_system=true"]
        environ = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={DEVICES // processes}"}
        if processes > 1:
            environ |= {
                "JAX_PROCESS_COUNT": str(processes),
                "PROCESSES_IN_JOB": str(processes),
                "JOB_INDEX": "0",
                "JAX_COORDINATOR_ADDRESS": "127.0.0.1",  # without a port: the trainer has its own
            }
            wants_port(COORDINATOR_PORT)
        began = time.monotonic()
        with contextlib.ExitStack() as running:
            ranks = [
                running.enter_context(
                    self._start(
                        f"{name}-{rank}",
                        extra,
                        environ | cache | {"JOB_COMPLETION_INDEX": str(rank)},
                    )
                )
                for rank in range(processes)
            ]
            runs = []
            for rank, process in enumerate(ranks):
                folder = self.folder / f"{name}-{rank}"
                try:
                    code: int | None = process.wait(RUN_SECONDS)
                except subprocess.TimeoutExpired:
                    code = None
                if code != 0:
                    words = (folder / "log").read_text().splitlines()[-15:]
                    how = "hangs" if code is None else f"failed with {code}"
                    raise SystemExit("\n".join([f"outside: {folder.name} {how}:", *words]))
                runs.append(self._read(folder, time.monotonic() - began))
        return runs

    @contextlib.contextmanager
    def _start(
        self, name: str, extra: list[str], environ: dict[str, str]
    ) -> Iterator[subprocess.Popen[bytes]]:
        folder = self.folder / name
        folder.mkdir()
        outputs = [f"base_output_directory={folder}/output", f"metrics_file={folder}/metrics"]
        command = [self.python, HERE / "maxtext_trainer.py", folder / "result.json", self.config]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [*command, *MODEL, *extra, *outputs],
                cwd=folder,
                env=plain_environment() | environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()

    def _read(self, folder: Path, wall: float) -> Run:
        result = json.loads((folder / "result.json").read_text())
        metrics = []
        with contextlib.suppress(FileNotFoundError):  # of the first process only
            for line in (folder / "metrics").read_text().splitlines():
                step = json.loads(line)
                metrics.append({k: v for k, v in step.items() if k.startswith("learning/")})
        said = re.findall(r"^coldstart: .*$", (folder / "log").read_text(), re.MULTILINE)
        return Run(result["programs"], result["state"], metrics, wall, said[-1] if said else "")


def plain_environment() -> dict[str, str]:
    """This environment without what would give a run another cache, other devices or a cloud to talk to."""
    unwanted = ("COLDSTART_", "JAX_", "XLA_", "LIBTPU_", "PYTHONPATH")
    environ = {name: text for name, text in os.environ.items() if not name.startswith(unwanted)}
    return environ | {"JAX_PLATFORMS": "cpu", "DECOUPLE_GCLOUD": "TRUE", "TPU_SKIP_MDS_QUERY": "1"}


def wants_port(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # as the coordinator itself does
        try:
            probe.bind(("", port))
        except OSError as exc:
            raise SystemExit(
                f"outside: the trainer's processes meet at port {port}: {exc}"
            ) from exc


@contextlib.contextmanager
def daemon(python: Path, folder: Path) -> Iterator[str]:
    """The address of a daemon over an empty disk store in `folder`."""
    folder.mkdir()
    address, ready = f"unix://{folder}/d.sock", folder / "ready.json"
    arguments = [f"--listen={address}", f"--store=disk://{folder}/store", f"--ready-file={ready}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [python, "-m", "coldstart.cli.main", "daemon", *arguments],
            env=plain_environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"outside: no daemon:\n{(folder / 'log').read_text()}")
            time.sleep(0.02)  # a file has no event to wait for
        yield address
    finally:
        process.terminate()
        process.wait(START_SECONDS)


def stats(python: Path, address: str) -> dict[str, Any]:
    """What the daemon counted."""
    command = [python, "-m", "coldstart.cli.main", "stats", "--json", "--address", address]
    done = subprocess.run(command, env=plain_environment(), stdout=subprocess.PIPE, check=True)
    numbers: dict[str, Any] = json.loads(done.stdout)
    return numbers


def coldstart(address: str) -> dict[str, str]:
    return {"COLDSTART_ADDRESS": address, "COLDSTART_STRICT": "1"}


def jax_cache(folder: Path) -> dict[str, str]:
    """JAX's own cache, keeping everything, as Coldstart does here."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "-1",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def show_runs(title: str, runs: dict[str, list[Run]]) -> None:
    print(f"\n{title}\n{'':24}programs  compiles  compile s  wall s  loss after 3 steps")
    for name, ranks in runs.items():
        for rank, run in enumerate(ranks):
            label = name if len(ranks) == 1 else f"{name}, rank {rank}"
            loss = f"{run.losses[-1]!r}" if run.losses else "-"
            print(
                f"{label:24}{len(run.programs):8}{run.compiles:10}{run.compile_seconds:11.1f}{run.wall:8.1f}  {loss}"
            )


def show_ranks(cold: dict[str, list[Run]]) -> None:
    """By program: how often the two processes compiled it together, first run of each cache."""
    print(f"\n{'two processes, cold':36}" + "".join(f"{name:>20}" for name in cold))
    for row in zip(*(rank.programs for ranks in cold.values() for rank in ranks), strict=True):
        marks = ["compiled" if program["compiles"] else "reused" for program in row]
        pairs = [f"{a} {b}" for a, b in zip(marks[::2], marks[1::2], strict=True)]
        print(f"{row[0]['name']:36}" + "".join(f"{pair:>20}" for pair in pairs))


def joined(ranks: list[Run]) -> dict[str, str]:
    """The whole state, of all ranks."""
    return {place: digest for rank in ranks for place, digest in rank.state.items()}


class Checks:
    def __init__(self) -> None:
        self.failed = 0
        print()

    def that(self, holds: bool, what: str) -> None:
        print(f"{'ok    ' if holds else 'FAILED'} {what}")
        self.failed += not holds


def main() -> int:
    parser = argparse.ArgumentParser(description="MaxText's trainer under Coldstart")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep logs and results here")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")
    options = parser.parse_args()
    python = environment("maxtext", "3.12", *MAXTEXT)
    with contextlib.ExitStack() as stack:
        if options.keep:
            options.keep.mkdir(parents=True)
            folder = options.keep.resolve()
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="coldstart-")))
        return measure(python, folder, options.json)


def measure(python: Path, folder: Path, figures: Path | None) -> int:
    trainer = Trainer(python, folder)
    one: dict[str, list[Run]] = {"no cache": trainer.run("none", {})}
    with daemon(python, folder / "one") as address:
        one["Coldstart, first"] = trainer.run("ours-1", coldstart(address))
        one["Coldstart, second"] = trainer.run("ours-2", coldstart(address))
        counted = stats(python, address)
    stock = jax_cache(folder / "stock-one")
    one["JAX's cache, first"] = trainer.run("stock-1", stock)
    one["JAX's cache, second"] = trainer.run("stock-2", stock)

    two: dict[str, list[Run]] = {}
    with daemon(python, folder / "two") as address:
        two["Coldstart, cold"] = trainer.run("ours-two-1", coldstart(address), 2)
        counted_two_cold = stats(python, address)
        two["Coldstart, warm"] = trainer.run("ours-two-2", coldstart(address), 2)
        counted_two = stats(python, address)
    stock = jax_cache(folder / "stock-two")
    two["JAX's cache, cold"] = trainer.run("stock-two-1", stock, 2)
    two["JAX's cache, warm"] = trainer.run("stock-two-2", stock, 2)

    show_runs(f"one process, {DEVICES} devices", one)
    show_runs(f"two processes of {DEVICES // 2} devices", two)
    show_ranks({name: ranks for name, ranks in two.items() if name.endswith("cold")})
    for name, ranks in (one | two).items():
        for rank, run in enumerate(ranks):
            if run.said:
                print(f"{name}, rank {rank}: {run.said}")
    failed = check(one, two, counted)
    if figures:
        rows = {
            name: [
                {"programs": run.programs, "wall": run.wall, "losses": run.losses, "said": run.said}
                for run in ranks
            ]
            for name, ranks in (one | two).items()
        }
        rows["stats"] = [counted, counted_two_cold, counted_two]  # type: ignore[assignment]
        figures.write_text(json.dumps(rows, indent=1))
    return 1 if failed else 0


def check(one: dict[str, list[Run]], two: dict[str, list[Run]], counted: dict[str, Any]) -> int:
    checks = Checks()
    (plain,), (first,), (second,) = (
        one[n] for n in ("no cache", "Coldstart, first", "Coldstart, second")
    )
    programs = len(plain.programs)
    checks.that(programs >= 10, f"the trainer wants {programs} programs (10 or more)")
    seconds = plain.compile_seconds
    checks.that(
        plain.compiles == programs, f"without a cache it compiles every one: {seconds:.1f} s here"
    )
    checks.that(
        not plain.said and bool(second.said), "Coldstart is there only where its address is set"
    )
    checks.that(second.compiles == 0, f"second run under Coldstart: {second.compiles} compiles")
    counts = {count["outcome"]: 0 for count in counted["lookups"]}
    for count in counted["lookups"]:
        counts[count["outcome"]] += count["count"]
    checks.that(
        counts == {"miss": first.compiles, "hit": 2 * programs - first.compiles},
        f"the daemon counted the same: {counts}",
    )
    for name in list(one)[1:]:
        (run,) = one[name]
        same = run.metrics == plain.metrics and run.state == plain.state
        checks.that(
            same, f"{name}: the {len(run.state)} trained pieces are the uncached run's, bit for bit"
        )

    cold, warm = two["Coldstart, cold"], two["Coldstart, warm"]
    fleet = sum(run.compiles for run in cold)
    checks.that(
        fleet < 2 * programs, f"two processes, cold: {fleet} compiles for {2 * programs} programs"
    )
    rows = zip(*(run.programs for run in cold), strict=True)
    both = {row[0]["name"] for row in rows if all(program["compiles"] for program in row)}
    checks.that(both == APART, f"compiled by both: only {', '.join(sorted(both))}")
    checks.that(sum(run.compiles for run in warm) == 0, "two processes, warm: 0 compiles on either")
    compiled = two["JAX's cache, cold"]  # both ranks compile everything there
    for name, ranks in two.items():
        if ranks is not compiled:
            same = joined(ranks) == joined(compiled) and ranks[0].metrics == compiled[0].metrics
            checks.that(
                same, f"{name}: the weights of two processes that share nothing, bit for bit"
            )
    apart = max(abs(a - b) for a, b in zip(plain.losses, cold[0].losses, strict=True))
    bits = "bit for bit" if joined(cold) == plain.state else "not bit for bit"
    checks.that(
        apart <= LOSS_TOLERANCE,
        f"losses of two processes and of one: {apart:.1e} apart (weights: {bits})",
    )
    return checks.failed


if __name__ == "__main__":
    sys.exit(main())
