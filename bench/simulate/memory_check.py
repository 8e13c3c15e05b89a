"""Check of the scheduler's memory accounting against the object handles that exist."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.simulate.world import Violation

if TYPE_CHECKING:
    from bench.simulate.actor import Actor
    from bench.simulate.scenario import Scenario
    from windrow.pipeline.coordinator.driver import Driver

__all__ = ["check_held_bytes", "count_buffered_bytes"]


def check_held_bytes(actor: Actor, scenario: Scenario) -> None:
    """Check that the scheduler's count of held bytes is right and within the memory limit.

    Raises
    ------
    Violation
        If the count is wrong or exceeds the limit.
    """
    driver = actor.driver
    # only a check may read a driver's internals; outputs above their estimate are known only once they exist
    if driver is None or driver.failure is not None or scenario.growth > 1:
        return
    scheduler, held = driver._scheduler, count_buffered_bytes(driver) + actor.running_bytes
    if held != scheduler.held_bytes:
        raise Violation(f"{held} bytes are held or expected, but the scheduler counts {scheduler.held_bytes}")
    # counting the rows behind a window must not wait for memory, so it may exceed the limit
    if scenario.job.rows_known and held > scheduler.memory_bytes:
        raise Violation(f"{held} bytes are held or expected, above the limit of {scheduler.memory_bytes}")


def count_buffered_bytes(driver: Driver) -> int:
    """Total size of the objects whose handles a driver holds."""
    size = 0
    for window in driver._buffered.values():
        size += sum(handle.size_bytes for handle in window.tables.values())
        for destinations in window.outputs.values():
            for slices in destinations:
                size += sum(handle.size_bytes for handle in slices if handle is not None)
    return size
