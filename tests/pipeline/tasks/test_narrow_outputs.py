"""Narrowed map outputs give each reader what whole ones do."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.core.buffer_pool import BufferPool
from windrow.core.errors import PlanError
from windrow.pipeline.delivery.sequence_slice import Selection, SequenceSlice
from windrow.pipeline.delivery.wanted import EVERYTHING, Wanted
from windrow.pipeline.tasks.narrow_outputs import narrow_outputs
from windrow.shuffle.kernels.group_rows import group_rows
from windrow.shuffle.kernels.map_output import MapOutput
from windrow.shuffle.kernels.place_rows import MapOutputs, place_rows

ROWS, LENGTH = 40, 16
SCALARS, SEQUENCES = ["number", "text", "maybe"], ["tokens", "labels", "mask", "pairs"]


def make_table(rng: np.random.Generator, rows: int = ROWS, length: int = LENGTH) -> pa.Table:
    tokens = rng.integers(0, 1000, rows * length).astype(np.int32)
    pairs = pa.array(rng.integers(0, 9, rows * length * 2))
    numbers = rng.integers(0, 2**40, rows)
    return pa.table(
        {
            "number": numbers,
            "tokens": pa.FixedSizeListArray.from_arrays(pa.array(tokens), length),
            "text": [str(number) for number in numbers],
            "labels": pa.array(list(rng.random((rows, length)))),
            "maybe": pa.array([int(number % 5) if number % 3 else None for number in numbers], pa.int8()),
            "mask": pa.FixedShapeTensorArray.from_numpy_ndarray(tokens.reshape(rows, length)),
            "pairs": pa.FixedSizeListArray.from_arrays(pa.FixedSizeListArray.from_arrays(pairs, 2), length),
        }
    )


def group(table: pa.Table, positions: Any) -> list[MapOutput]:
    """Group a table for one run in which row i takes place ``positions[i]``."""
    runs, places = np.zeros(len(positions), np.uint16), positions.astype(np.uint32)
    return group_rows(table, None, runs, places, np.array([0, 1]), BufferPool(0))


def shuffled(rng: np.random.Generator, tables: list[pa.Table]) -> list[MapOutput]:
    positions = rng.permutation(sum(table.num_rows for table in tables))
    parts = np.split(positions, np.cumsum([table.num_rows for table in tables])[:-1])
    return [each for table, part in zip(tables, parts, strict=True) for each in group(table, part)]


def place(outputs: list[MapOutput], rows: int) -> pa.RecordBatch:
    return place_rows(MapOutputs(outputs), 0, rows, BufferPool(0))


@st.composite
def selections(draw: st.DrawFn) -> Selection:
    columns = draw(st.none() | st.lists(st.sampled_from([*SCALARS, *SEQUENCES]), unique=True))
    if draw(st.booleans()) or (columns is not None and not set(columns) & set(SEQUENCES)):
        return Selection(columns)
    count = draw(st.sampled_from([1, 2, 4]))
    layout: Any = draw(st.sampled_from(["contiguous", "head_tail"]))
    named = draw(st.booleans())
    cut = [name for name in SEQUENCES if columns is None or name in columns]
    sequence = SequenceSlice(1, draw(st.integers(0, count - 1)), count, layout, cut[:1] if named else None)
    return Selection(columns, sequence)


@given(
    wanted=st.lists(selections(), min_size=1, max_size=4), seed=st.integers(0, 2**32), copies=st.booleans()
)
def test_readers_get_what_whole_rows_give_them(wanted: list[Selection], seed: int, copies: bool) -> None:
    rng = np.random.default_rng(seed)
    outputs = shuffled(rng, [make_table(rng), make_table(rng, 1), make_table(rng, 7)])
    rows = sum(output.num_rows for output in outputs)
    narrowed = narrow_outputs(outputs, Wanted.by(wanted), copies=copies)
    found, whole = place(narrowed, rows), place(outputs, rows)
    for selection in wanted:
        assert selection.apply(found).equals(selection.apply(whole), check_metadata=True)
    if copies:
        # nothing else travels
        sizes = [len(pickle.dumps(each, protocol=5)) for each in (narrowed, outputs)]
        assert sizes[0] <= sizes[1]


def test_only_what_is_wanted_travels() -> None:
    rng = np.random.default_rng(7)
    rows, length = 400, 64
    (whole,) = group(make_table(rng, rows, length), rng.permutation(rows))

    def travels(*wanted: Selection) -> int:
        (narrowed,) = narrow_outputs([whole], Wanted.by(wanted), copies=True)
        return len(pickle.dumps(narrowed, protocol=5))

    labels, tokens = 8 * rows * length, 4 * rows * length
    nothing = travels(Selection([]))
    assert nothing < 5 * rows + 3000
    assert travels(Selection(["labels"])) == pytest.approx(labels, rel=0.1)
    quarter = SequenceSlice(1, 1, 4, "head_tail")
    assert travels(Selection(["labels"], quarter)) == pytest.approx(labels / 4, rel=0.2)
    assert travels(Selection(["tokens"]), Selection(["labels"], quarter)) == pytest.approx(
        tokens + labels / 4, rel=0.1
    )
    both = [Selection(["labels"], SequenceSlice(1, index, 4)) for index in (1, 3)]
    assert travels(*both) == pytest.approx(labels / 2, rel=0.1)


@pytest.mark.parametrize(
    "selection", [Selection(["missing"]), Selection(["tokens"], SequenceSlice(1, 0, 2, columns=["missing"]))]
)
def test_selection_that_does_not_fit_gets_whole_columns_for_its_error(selection: Selection) -> None:
    rng = np.random.default_rng(7)
    outputs = shuffled(rng, [make_table(rng)])
    found = place(narrow_outputs(outputs, Wanted.by([selection]), copies=True), ROWS)
    with pytest.raises(PlanError, match="missing") as narrowed:
        selection.apply(found)
    with pytest.raises(PlanError, match="missing") as expected:
        selection.apply(place(outputs, ROWS))
    assert str(narrowed.value) == str(expected.value)


def test_sequences_that_cannot_be_cut() -> None:
    rng = np.random.default_rng(7)
    outputs = shuffled(rng, [make_table(rng, length=6)])
    wanted = Wanted.by([Selection(["tokens"], SequenceSlice(1, 0, 4))])
    with pytest.raises(PlanError, match="'tokens': sequences of 6 elements"):
        narrow_outputs(outputs, wanted, copies=True)
    (narrowed,) = narrow_outputs(outputs, wanted.with_whole_sequences(), copies=True)
    assert narrowed.schema.names == ["tokens"]


def test_what_covers_what() -> None:
    first, second = Wanted.by([Selection(["a"])]), Wanted.by([Selection(["b"])])
    assert (first | second).covers(second)
    assert not first.covers(second)
    assert EVERYTHING.covers(first)
    assert not first.covers(EVERYTHING)
    assert (first | EVERYTHING) == EVERYTHING


def test_only_wanted_tokens_travel() -> None:
    rng = np.random.default_rng(7)
    rows, length = 64 * 200, 64
    tokens = pa.table({"tokens": rng.integers(0, 2**31, rows).astype(np.int32), "document": np.arange(rows)})
    runs = np.repeat(np.array([0, 1], np.uint16), rows // 2)
    places = np.tile(np.arange(rows // 2, dtype=np.uint32), 2)
    (whole,) = group_rows(tokens, None, runs, places, np.array([0, 2]), BufferPool(0))

    def travels(wanted: Wanted, *starts: int) -> int:
        narrowed = narrow_outputs([whole], wanted, np.array(starts), copies=True)
        return len(pickle.dumps(narrowed, protocol=5))

    everything, none = len(pickle.dumps([whole], protocol=5)), 1000
    quarter = Wanted.by([Selection(None, SequenceSlice(1, 1, 4, "head_tail"))], length)
    # runs that begin anywhere in a sequence
    assert travels(quarter, 17, 5 * 64 + 3) == pytest.approx(everything / 4, rel=0.1)
    # and those of other shards, which another host gets
    assert travels(quarter, -1, 40) == pytest.approx(everything / 8, rel=0.1)
    assert travels(Wanted.by([Selection(["tokens", "document"])], length), 0) == pytest.approx(
        everything / 2, rel=0.1
    )
    assert travels(Wanted.by([Selection([])], length), 0, 0) < none
