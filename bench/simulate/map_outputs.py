"""Map outputs of simulated tasks: for each destination and slice, row numbers by run and place."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING

from bench.simulate.scenario import Dataset
from windrow.pipeline.tasks.task import Task
from windrow.shuffle.kernels.destinations import Destinations
from windrow.shuffle.order.runs import Run

if TYPE_CHECKING:
    from bench.simulate.world import World

__all__ = ["Handle", "MapOutput", "map_rows", "place_rows"]

# a run's number within the slice -> (place, row) each
MapOutput = dict[int, list[tuple[int, int]]]


class Handle:
    """A reference to an object, which exists as long as a reference does.

    Attributes
    ----------
    owner
        The coordinator incarnation that owns it.
    location
        The node that holds it, and the incarnation of that node.
    confirmed
        Whether it was available once; it is then lost only together with its node.
    ready_at
        Time at which a reconstructed object is available.
    """

    __slots__ = ("_world", "confirmed", "location", "map_output", "owner", "ready_at", "size_bytes")

    def __init__(
        self, world: World, map_output: MapOutput, size_bytes: int, owner: int, location: tuple[int, int]
    ) -> None:
        self._world = world
        self.map_output = map_output
        self.size_bytes = size_bytes
        self.owner = owner
        self.location = location
        self.ready_at = 0.0
        self.confirmed = False
        world.live_handles[owner] += 1

    def __del__(self) -> None:
        self._world.live_handles[self.owner] -= 1


def map_rows(dataset: Dataset, task: Task) -> list[list[MapOutput]]:
    """[destination][slice] -> map output of a task that computes positions."""
    ordering = task.ordering
    assert ordering is not None, "rows are placed by tasks that compute positions"
    rows = [row for block in task.blocks for row in range(dataset.firsts[block], dataset.firsts[block + 1])]
    first = ordering.offsets[0]
    epoch_rows = ordering.order.epoch_rows(first, first + len(rows))
    destinations = Destinations(ordering.layouts)
    sources, runs, places = destinations.assign(epoch_rows)
    starts = destinations.slice_starts.tolist()
    map_outputs: list[MapOutput] = [{} for _ in pairwise(starts)]
    entries = range(len(rows)) if sources is None else sources.tolist()
    for source, run, place in zip(entries, runs.tolist(), places.tolist(), strict=True):
        if run < starts[-1]:
            at = bisect_right(starts, run) - 1
            map_outputs[at].setdefault(run - starts[at], []).append((place, rows[source]))
    slices = ordering.layouts[0].slices
    return [map_outputs[i : i + slices] for i in range(0, len(map_outputs), slices)]


def place_rows(map_outputs: list[MapOutput], run: Run) -> list[int]:
    """Place the rows of a run.

    Raises
    ------
    ValueError
        If a place gets two rows, or none.
    """
    rows: list[int | None] = [None] * run.rows
    for map_output in map_outputs:
        for place, row in map_output.get(run.index, ()):
            if place >= run.rows or rows[place] is not None:
                raise ValueError(f"two rows at place {place} of a run of {run.rows} rows")
            rows[place] = row
    found = [row for row in rows if row is not None]
    if len(found) < run.rows:
        raise ValueError(f"{run.rows - len(found)} of the {run.rows} rows of a run are missing")
    return found
