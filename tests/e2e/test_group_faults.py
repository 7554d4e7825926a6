"""A member of a job loses its daemon: it falls back to the very program that its peers run (H2).

So results are right in every cell, and only these cells compile twice.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from groups import RUN, WAIT_SECONDS, WORK_SECONDS, Job, compiles, one_program, run, until
from processes import Daemon

from coldstart.client.client import SMALL_CALL_SECONDS

pytestmark = pytest.mark.timeout(int(3 * (WORK_SECONDS + WAIT_SECONDS)))

LONG = pytest.mark.long


def loses(
    job: Job, daemon: Daemon, how: str, paused: list[Path], go: Path, *, lost: set[int]
) -> None:
    """Once every paused member is where it should be, take its daemon away and let it go on."""
    for path in paused:
        until(path.exists, WORK_SECONDS)
    daemon.signal(getattr(signal, how))
    go.touch()
    ran = job.finish()
    one_program(ran)
    for rank, one in enumerate(ran):
        assert one.said["lost"] <= 2 * SMALL_CALL_SECONDS
        assert one.stderr.count("compiling without the cache") == (rank in lost)


@pytest.mark.parametrize(
    ("moment", "how", "count"),
    [
        ("fetch", "SIGSTOP", 2),
        *(
            pytest.param(moment, how, count, marks=LONG)
            for moment in ("lookup", "fetch")
            for how in ("SIGSTOP", "SIGKILL")
            for count in (2, 4)
            if (moment, how, count) != ("fetch", "SIGSTOP", 2)
        ),
    ],
)
def test_one_member_loses_its_daemon_and_the_others_hit(
    daemons: Callable[..., Daemon], tmp_path: Path, moment: str, how: str, count: int
) -> None:
    """All have the program on their hosts' disks. The last member's daemon goes before it answers, or before bytes."""
    theirs = daemons()
    warm = run(RUN, [theirs.address] * count, 8 // count)
    one_program(warm)
    odd = daemons(copy=theirs.store)
    paused, go = tmp_path / "paused", tmp_path / "go"
    with Job(RUN, count, 8 // count) as job:
        for _ in range(count - 1):
            job.start(theirs.address, COLDSTART_STRICT="1")
        job.start(
            odd.address,
            COLDSTART_STRICT="0",
            COLDSTART_VOLUME_ROOT=str(tmp_path),  # not the daemon's, so bytes come by stream
            PAUSE=moment,
            PAUSED=str(paused),
            GO=str(go),
        )
        loses(job, odd, how, [paused], go, lost={count - 1})
        ran = job.ran
    assert compiles(ran) == [0] * (count - 1) + [1]
    assert [one.said["ends"] for one in ran[:-1]] == [["hit/ok"]] * (count - 1)
    assert ran[0].said["ran"] == warm[0].said["ran"]


@LONG
@pytest.mark.parametrize("how", ["SIGSTOP", "SIGKILL"])
@pytest.mark.parametrize("count", [2, 4])
def test_all_lose_their_daemon_and_each_compiles_the_same(
    daemons: Callable[..., Daemon], tmp_path: Path, how: str, count: int
) -> None:
    daemon, go = daemons(), tmp_path / "go"
    paused = [tmp_path / f"paused{rank}" for rank in range(count)]
    with Job(RUN, count, 8 // count) as job:
        for path in paused:
            here = {"PAUSE": "lookup", "PAUSED": str(path), "GO": str(go)}
            job.start(daemon.address, COLDSTART_STRICT="0", **here)
        loses(job, daemon, how, paused, go, lost=set(range(count)))
        assert compiles(job.ran) == [1] * count


@LONG
@pytest.mark.parametrize("how", ["SIGSTOP", "SIGKILL"])
@pytest.mark.parametrize("count", [2, 4])
def test_the_daemon_is_lost_after_the_first_member_published(
    daemons: Callable[..., Daemon], tmp_path: Path, how: str, count: int
) -> None:
    """The others had not asked by then, so each compiles what the first one runs."""
    daemon, go = daemons(), tmp_path / "go"
    paused = [tmp_path / f"paused{rank}" for rank in range(count)]
    with Job(RUN, count, 8 // count) as job:
        for rank, path in enumerate(paused):
            here = {"PAUSE": "lookup" if rank else "published", "PAUSED": str(path), "GO": str(go)}
            job.start(daemon.address, COLDSTART_STRICT="0", **here)
        loses(job, daemon, how, paused, go, lost=set(range(1, count)))
        assert compiles(job.ran) == [1] * count
    assert len(daemon.artifacts()) == 1
