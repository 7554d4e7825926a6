"""Plans: made again by their seed, no two faults of one target at once, and every kind within the short run."""

from __future__ import annotations

import pytest
from chaos_plan import CALM_SECONDS, CI_SEED, KINDS, draw

SEEDS = range(1, 30)


def test_a_seed_makes_the_same_plan() -> None:
    assert draw(7, 60.0) == draw(7, 60.0) != draw(8, 60.0)


def test_a_minute_of_the_short_run_has_faults_of_every_kind() -> None:
    found = {(fault.target.partition(":")[0], fault.kind) for fault in draw(CI_SEED, 60.0).faults}
    wanted = {(target.partition(":")[0], kind) for target, kind in KINDS}
    assert {kind for kind in wanted if kind[0] != "island"} <= found
    assert islands(CI_SEED, "refuse") and islands(CI_SEED, "kill")


def islands(seed: int, kind: str) -> list[float]:
    """When a daemon lost both stores at once, and with `kill` was killed without them."""
    faults = draw(seed, 60.0).faults
    links = {(fault.target, fault.at): fault for fault in faults if "-link:" in fault.target}
    alone = {
        (target[-1], at): fault.seconds
        for (target, at), fault in links.items()
        if target.startswith("redis") and (f"gcs-link:{target[-1]}", at) in links
    }
    killed = {
        (number, at)
        for (number, at), seconds in alone.items()
        for fault in faults
        if (fault.target, fault.kind) == (f"daemon:{number}", "kill")
        and at < fault.at < at + seconds
    }
    return [at for number, at in alone if ((number, at) in killed) == (kind == "kill")]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_target_has_one_fault_at_a_time(seed: int) -> None:
    last: dict[str, float] = {}
    for fault in draw(seed, 150.0).faults:
        assert fault.at >= last.get(fault.target, 0.0)
        last[fault.target] = fault.at + fault.seconds


@pytest.mark.parametrize("seed", SEEDS)
def test_there_is_calm_between_the_faults_and_at_the_end_and_keys_are_born_in_it(seed: int) -> None:
    plan = draw(seed, 150.0)
    calm, over = [], 0.0
    for fault in plan.faults:
        if fault.at - over > CALM_SECONDS[0]:
            calm.append((over, fault.at))
        over = max(over, fault.at + fault.seconds)
    assert over < plan.seconds - CALM_SECONDS[0]
    assert len(calm) >= 10
    assert sum(any(a < birth < b for a, b in calm) for birth in plan.births) >= len(plan.births) / 4
