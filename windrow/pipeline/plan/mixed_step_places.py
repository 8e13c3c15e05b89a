"""Where the rows of a source's window go in a mixture whose steps are divided by cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from windrow.pipeline.plan.mixed_source import NeededWindow
from windrow.pipeline.plan.mixture_leg import MixtureLeg
from windrow.pipeline.plan.window_places import cost_documents
from windrow.pipeline.tasks.task import Documents
from windrow.shuffle.order.divided_rounds import DividedRounds, lay_out_rounds
from windrow.shuffle.order.mixed_steps import SourceRows, divide_source
from windrow.shuffle.order.round_runs import RoundRuns, find_rows
from windrow.shuffle.order.shard_assignment import ShardAssignment
from windrow.shuffle.order.step_sequences import find_sequences
from windrow.shuffle.order.window_order import cut_documents

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


def divide_rows_of_source(
    leg: MixtureLeg,
    needed: NeededWindow,
    rows: Ints,
    measures: Sequence[Floats] | None,
    assignment: ShardAssignment,
    layouts: Sequence[RoundRuns],
) -> tuple[tuple[DividedRounds, ...], Ints]:
    """Divide the rows of a source's window, which are given by the mixture's row of each and the measures by block.

    ``layouts`` are those of the rounds without costs. Returns what `lay_out_rounds` does.
    """
    assert measures is not None, "rows are measured before they are placed"
    of_rows = np.concatenate([np.zeros(0, np.float32), *measures])
    own = SourceRows(
        needed.source,
        leg.rows_before,
        rows,
        costs=assignment.cost_balance.costs(of_rows),
        is_shared=np.zeros(len(rows), np.bool_),
    )
    divided = divide_source(assignment, own, leg.stop, leg.mixture.round_rows)
    return lay_out_rounds(_as_divided(layouts), divided, own.costs, of_rows, None)


def divide_sequences_of_source(
    leg: MixtureLeg,
    needed: NeededWindow,
    documents: Sequence[Documents],
    assignment: ShardAssignment,
    layouts: Sequence[RoundRuns],
) -> tuple[tuple[DividedRounds, ...], tuple[Documents, ...]]:
    """Divide the packed sequences of a source's window by what the documents cost that it has in them.

    Returns the layouts, and the documents with the keys of their pieces.
    """
    seq_len = assignment.sequence_rows
    source, window, stretches = leg.mixture.sources[needed.source], needed.window, leg.stretches_of(needed)
    span = window.before, window.before + sum(int(each.lengths.sum()) for each in documents)
    low, high = find_sequences(span, seq_len)
    numbers = np.arange(low, high, dtype=np.int64)
    begins = numbers * seq_len
    tokens = np.minimum(begins + seq_len, span[1]) - np.maximum(begins, span[0])
    rows = find_rows(stretches, needed.source, numbers + window.epoch * source.pass_rows)
    # the last few tokens of a pass are in no sequence
    rows[numbers >= source.pass_rows] = -1
    own = SourceRows(
        needed.source,
        leg.rows_before,
        rows,
        costs=cost_documents(assignment.cost_balance, span, documents, seq_len),
        is_shared=tokens < seq_len,
    )
    divided = divide_source(assignment.of_sequences, own, leg.stop, leg.mixture.round_rows)
    found, keys = lay_out_rounds(
        _as_divided(layouts), divided, own.costs, np.zeros(len(rows), np.float32), tokens
    )
    return found, tuple(_number_pieces(each, keys, low, seq_len) for each in documents)


def _number_pieces(documents: Documents, keys: Ints, low: int, seq_len: int) -> Documents:
    """Documents with the key of the first token of each piece, given those of sequences from number ``low`` on."""
    rows, _, sequences = cut_documents(documents.starts, documents.lengths, seq_len)
    found = keys[sequences - low]
    return replace(documents, numbers=np.where(found < 0, found, found + rows % seq_len))


def _as_divided(layouts: Sequence[RoundRuns]) -> list[DividedRounds]:
    none = np.zeros((0, 2), np.int64)
    return [
        DividedRounds(
            each.round,
            each.round_rows,
            each.first_round,
            each.stop_round,
            each.first_row,
            each.stop_row,
            each.most_slices,
            copies=none,
        )
        for each in layouts
    ]
