"""Map outputs without what no reader of a node takes of their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.buffer_pool import BufferPool
from windrow.pipeline.delivery.sequence_chunks import cut_column
from windrow.pipeline.delivery.wanted import Wanted
from windrow.shuffle.kernels.map_output import MapOutput
from windrow.shuffle.kernels.place_rows import MapOutputs


def narrow_outputs(
    outputs: Sequence[MapOutput],
    wanted: Wanted,
    places: NDArray[np.int64] | None = None,
    *,
    copies: bool,
) -> list[MapOutput]:
    """Leave out the columns, and the parts of sequences, that are not wanted.

    Parameters
    ----------
    places
        By run, where it starts in the stream of the shard that is read; -1, or no entry: it is not of this shard. What
        is left then has neither rows of other shards nor tokens that are not wanted; see `fill_run`. None: it has
        all rows.
    copies
        What is left keeps no memory of the rest. Fields of cut columns say which parts they hold.

    Raises
    ------
    PlanError
        If sequences cannot be cut.
    """
    return [_narrow(output, wanted, places, copies) for output in outputs]


def _narrow(output: MapOutput, wanted: Wanted, places: NDArray[np.int64] | None, copies: bool) -> MapOutput:
    schema = output.schema
    parts = wanted.of_columns(schema)
    numbers = [number for number, name in enumerate(schema.names) if name in parts]
    rows = None if places is None else _find_rows(output, wanted, places)
    if rows is not None:
        selected = output.select(numbers, {}, copies=False)
        starts = np.searchsorted(rows, output.run_starts)
        output = replace(selected.gather(rows, output.places[rows], BufferPool(0)), run_starts=starts)
        schema, numbers, copies = output.schema, list(range(len(numbers))), False
    if len(parts) == len(schema) and not any(parts.values()):
        return output
    replaced = {}
    for name, part in parts.items():
        if part is not None:
            number, others = schema.get_field_index(name), output.others
            column = others.column(others.schema.get_field_index(name))
            cut, field, _ = cut_column(column, schema.field(number), part.dim, part.chunks, marks=True)
            replaced[number] = cut, field
    return output.select(numbers, replaced, copies=copies)


def _find_rows(output: MapOutput, wanted: Wanted, places: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """The rows that are wanted of a map output; None: all."""
    starts = output.run_starts
    of_run = np.full(len(starts) - 1, -1, np.int64)
    of_run[: len(places)] = places
    tokens = wanted.token_places(output.schema)
    if tokens is None and (of_run >= 0).all() and starts[-1] - starts[0] == output.num_rows:
        return None
    start = np.repeat(of_run, np.diff(starts))
    kept = start >= 0
    if tokens is not None:
        kept &= tokens[(start + output.places[starts[0] : starts[-1]]) % len(tokens)]
    return np.flatnonzero(kept) + starts[0]


def fill_run(
    outputs: MapOutputs, run: int, row_count: int, place: int, wanted: Wanted
) -> tuple[MapOutputs, int]:
    """Put any values at the places of a run's tokens that were left out, which its readers leave out too.

    The run's first row is at ``place`` of the shard's stream. Returns map outputs with all rows of the run, and its
    number in them. What is wanted must be there.
    """
    tokens = wanted.token_places(outputs[0].schema)
    if tokens is None:
        return outputs, run
    is_there = tokens[np.arange(place, place + row_count) % len(tokens)]
    own = [
        output.of_runs(run, 1) for output in outputs if output.run_starts[run] < output.run_starts[run + 1]
    ]
    for output in own:
        start, stop = output.run_starts.tolist()
        is_there[output.places[start:stop]] = True
    missing = np.flatnonzero(~is_there)
    if not len(missing):
        return outputs, run
    packing = (own or outputs)[0].packing.copy()
    # no bytes: each value is the base
    packing[:, :2] = 0
    filler = MapOutput(
        schema=outputs[0].schema,
        run_starts=np.array([0, len(missing)], np.int64),
        places=missing.astype(np.uint32),
        values=np.empty(0, np.uint8),
        packing=packing,
        validity={},
        # tokens have a fixed width
        others=pa.RecordBatch.from_arrays([], names=[]),
    )
    return MapOutputs([*own, filler]), 0
