"""The worst delay of the last minute, and that a real loop that is blocked is seen to be late."""

from __future__ import annotations

import asyncio
import time

from coldstart.server.loop_lag import STEP_SECONDS, WINDOW_SECONDS, LoopLag


def test_the_worst_of_the_window() -> None:
    clock = [0.0]
    lag = LoopLag(now=lambda: clock[0])
    assert lag.worst_seconds == 0
    for at, late in ((0.0, 0.2), (10.0, 0.5), (20.0, 0.1), (30.0, 0.3)):
        clock[0] = at
        lag.late(late)
    assert lag.worst_seconds == 0.5
    clock[0] = 10.0 + WINDOW_SECONDS + 1
    assert lag.worst_seconds == 0.3
    clock[0] = 30.0 + WINDOW_SECONDS + 1
    assert lag.worst_seconds == 0


async def test_a_blocked_loop_is_late() -> None:
    lag = LoopLag()
    task = asyncio.create_task(lag.run())
    await asyncio.sleep(STEP_SECONDS / 2)
    time.sleep(2 * STEP_SECONDS)  # what no daemon should do
    await asyncio.sleep(STEP_SECONDS)
    task.cancel()
    assert lag.worst_seconds >= STEP_SECONDS
