"""What a task puts out: for each destination and slice, the rows of its runs by place."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING

from bench.simulate.scenario import Dataset
from windrow.pipeline.tasks.map_task import Task
from windrow.shuffle.kernels.destinations import Destinations
from windrow.shuffle.order.runs import Run

if TYPE_CHECKING:
    from bench.simulate.world import World

__all__ = ["Handle", "MapOutput", "map_rows", "place_rows"]

# a run's number within the slice -> (place, row) each
MapOutput = dict[int, list[tuple[int, int]]]


class Handle:
    """A reference to an object; the object lives as long as there is one.

    Attributes
    ----------
    owner
        The coordinator's life that it belongs to.
    stands
        The node that holds it, and that node's life.
    proven
        Whether it has been seen to be there, and so will not vanish by itself.
    ready_at
        From when on it is there, where it has to be made again.
    """

    __slots__ = ("_world", "map_output", "owner", "proven", "ready_at", "size_bytes", "stands")

    def __init__(
        self, world: World, map_output: MapOutput, size_bytes: int, owner: int, stands: tuple[int, int]
    ) -> None:
        self._world = world
        self.map_output = map_output
        self.size_bytes = size_bytes
        self.owner = owner
        self.stands = stands
        self.ready_at = 0.0
        self.proven = False
        world.live_handles[owner] += 1

    def __del__(self) -> None:
        self._world.live_handles[self.owner] -= 1


def map_rows(dataset: Dataset, task: Task) -> list[list[MapOutput]]:
    """[destination][slice] -> the rows of a task that computes positions."""
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
    """The rows of a run in their order.

    Raises
    ------
    ValueError
        If a place has two rows, or none.
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
