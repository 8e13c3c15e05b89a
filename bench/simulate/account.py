"""What a run holds, counted once more from the handles that are really there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.simulate.world import Violation

if TYPE_CHECKING:
    from bench.simulate.actor import Actor
    from bench.simulate.scenario import Scenario
    from windrow.pipeline.coordinator.driver import Driver

__all__ = ["check_account", "count_held"]


def check_account(actor: Actor, scenario: Scenario) -> None:
    """See that the scheduler's account is right, and within the limit.

    Raises
    ------
    Violation
        If it is not.
    """
    driver = actor.driver
    # only a check may look into a driver; what exceeds its estimate is seen only when it is there
    if driver is None or driver.failure is not None or scenario.growth > 1:
        return
    account, held = driver._scheduler, count_held(driver) + actor.running_bytes
    if held != account.held_bytes:
        raise Violation(f"{held} bytes are held and expected, and the account says {account.held_bytes}")
    # to count what lies behind a window must not wait for memory
    if scenario.job.rows_known and held > account.memory_bytes:
        raise Violation(f"{held} bytes are held and expected where {account.memory_bytes} may be")


def count_held(driver: Driver) -> int:
    """Bytes behind the handles that a driver has."""
    size = 0
    for window in driver._buffered.values():
        size += sum(handle.size_bytes for handle in window.tables.values())
        for destinations in window.outputs.values():
            for slices in destinations:
                size += sum(handle.size_bytes for handle in slices if handle is not None)
    return size
