"""Closes the gaps between the places of runs whose rows were placed before it was known how many there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from windrow.shuffle.kernels.map_output import MapOutput

# counting places takes memory for each, sorting takes time for each row
_COUNTED_PER_ROW = 8


def close_gaps(
    map_outputs: Sequence[MapOutput],
    runs: Sequence[int],
    sequence_rows: int,
    moves: NDArray[np.int64] | None = None,
) -> list[MapOutput]:
    """The same map outputs, in whose ``runs`` places are those from 0 on, in the order that they had.

    Places of other runs are undefined. Each ``sequence_rows`` places stay together. With ``moves``, each row of the
    runs, one run after the other, comes at this place of its run instead.
    """
    found = [np.empty_like(each.places) for each in map_outputs]
    done = 0
    for run in runs:
        spans = [slice(*each.run_starts[run : run + 2].tolist()) for each in map_outputs]
        places = np.concatenate([each.places[own] for each, own in zip(map_outputs, spans, strict=True)])
        closed = _rank(places, sequence_rows)
        if moves is not None:
            sequences = closed // np.uint32(sequence_rows)
            closed += (moves[done + sequences] - sequences).astype(np.uint32) * np.uint32(sequence_rows)
            # tokens that no reader wants can be left out
            done += int(sequences.max()) + 1 if len(sequences) else 0
        stops = np.cumsum([own.stop - own.start for own in spans])[:-1]
        for to, own, part in zip(found, spans, np.split(closed, stops), strict=True):
            to[own] = part
    return [replace(each, places=places) for each, places in zip(map_outputs, found, strict=True)]


def _rank(places: NDArray[np.uint32], sequence_rows: int) -> NDArray[np.uint32]:
    """(places,) the number of lower ones, where each ``sequence_rows`` stand for one.

    >>> _rank(np.array([9, 3, 2, 8], np.uint32), 1).tolist(), _rank(np.array([9, 3, 2, 8], np.uint32), 2).tolist()
    ([3, 1, 0, 2], [3, 1, 0, 2])
    """
    if not len(places):
        return places
    sequences = places // np.uint32(sequence_rows)
    most = int(sequences.max()) + 1
    if most <= _COUNTED_PER_ROW * len(places):
        is_taken = np.zeros(most, np.uint32)
        is_taken[sequences] = 1
        ranks = (np.cumsum(is_taken, dtype=np.uint32) - is_taken)[sequences]
    else:
        _, inverse = np.unique(sequences, return_inverse=True)
        ranks = inverse.astype(np.uint32)
    if sequence_rows == 1:
        return ranks
    within = places - sequences * np.uint32(sequence_rows)
    return ranks * np.uint32(sequence_rows) + within
