"""Frame-of-reference encoding is lossless, whether C or NumPy groups and places the rows."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.core.pools import GuardedPool
from tests.pipeline.tasks.cache.test_cached_reader import LazyPart
from tests.shuffle.examples import by_day
from tests.shuffle.kernels.test_native import needs_library, without_library
from tests.shuffle.tables import rows_of
from windrow.core.buffer_pool import BufferPool
from windrow.core.column_memory import ColumnMemory
from windrow.core.frame_of_reference import Packing, bounds_table, is_packable
from windrow.core.native_libraries import address_of
from windrow.core.source import BlockPart, Scattered
from windrow.shuffle.kernels import native
from windrow.shuffle.kernels.bit_packing import pack_values
from windrow.shuffle.kernels.fixed_width import fixed_width_bytes
from windrow.shuffle.kernels.group_rows import DECODED_TOGETHER_BYTES, group_rows
from windrow.shuffle.kernels.map_output import MapOutput
from windrow.shuffle.kernels.packed_rows import join_columns
from windrow.shuffle.kernels.place_rows import MapOutputs, place_rows

# first those of each width, signed and not, and a time
TYPES = [
    *(pa.int16(), pa.uint16(), pa.uint32(), pa.int64(), pa.timestamp("us", tz="Europe/Paris")),
    *(pa.int32(), pa.date32(), pa.time32("ms"), pa.uint64(), pa.duration("ns"), pa.date64()),
]
SPANS = [0, 255, 256, 65_536, 2**32, 2**64 - 1, 1, 65_535, 2**32 - 1]


def first_by_day(values: Sequence[Any], count: int) -> list[Any]:
    """Leave all but the first ``count`` parameters to the night."""
    others = (pytest.param(value, marks=pytest.mark.nightly) for value in values[count:])
    return [*values[:count], *others]


def words(kind: pa.DataType, low: int, span: int, rows: int, rng: np.random.Generator) -> pa.Array:
    """A column with minimum ``low`` and maximum ``low + span``, with wraparound."""
    width = fixed_width_bytes(kind)
    span = min(span, 2 ** (8 * width) - 1)
    more = rng.integers(0, span, rows, np.uint64, endpoint=True)
    more[rng.integers(0, rows)] = span
    more[rng.integers(0, rows)] = 0
    moved = (more + np.array(low % 2**64, np.uint64)).astype(f"u{width}")
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(moved)], null_count=0)


def group(part: BlockPart, places: NDArray[np.uint32], pool: BufferPool, runs: int = 1) -> list[MapOutput]:
    of_run = np.zeros(len(places), np.uint16)
    return group_rows(part, None, of_run, places, np.arange(runs + 1), pool)


@pytest.mark.parametrize("span", first_by_day(SPANS, 6))
@pytest.mark.parametrize("kind", first_by_day(TYPES, 5), ids=str)
@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize("placed", [True, False])
def test_packed_values_round_trip(kind: pa.DataType, span: int, grouped: bool, placed: bool) -> None:
    if native.LIBRARY is None and (grouped or placed):
        pytest.skip("built without a C compiler")
    rng, rows, pool = np.random.default_rng(span % 1000), 1_300, GuardedPool()
    lows = [0, -3, 2 ** (8 * fixed_width_bytes(kind) - 1) - 2, 7]
    columns = [words(kind, low, span, 2 * rows, rng) for low in lows * 2]
    # several columns of one width are moved in lanes; the packings of the two blocks can differ
    tables = [
        pa.table({f"c{i}": column.slice(start, rows) for i, column in enumerate(columns)})
        for start in (0, rows)
    ]
    places = rng.permutation(2 * rows).astype(np.uint32)
    halves = places[:rows], places[rows:]
    with pytest.MonkeyPatch.context() as patch:
        library = native.LIBRARY
        patch.setattr(native, "LIBRARY", library if grouped else None)
        made = [group(table, half, pool)[0] for table, half in zip(tables, halves, strict=True)]
        # cached addresses are not valid in another process, so pickling drops them
        assert all(map_output.sources.size and map_output.places_address for map_output in made)
        map_outputs = [pickle.loads(pickle.dumps(map_output)) for map_output in made]
        patch.setattr(native, "LIBRARY", library if placed else None)
        batch = place_rows(MapOutputs(map_outputs), 0, 2 * rows, pool)
    pool.assert_guarded()
    order = pa.Array.from_buffers(
        pa.int64(), 2 * rows, [None, pa.py_buffer(np.argsort(places).astype(np.int64))]
    )
    assert batch.equals(pa.concat_tables(tables).take(order).combine_chunks().to_batches()[0])
    for map_output, table, half in zip(map_outputs, tables, halves, strict=True):
        # rows of one run keep their order
        assert rows_of(map_output).equals(table.combine_chunks().to_batches()[0])
        assert np.array_equal(map_output.places, half)


@by_day(30)
@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**64 - 1), st.sampled_from([2, 4, 8]))
def test_packing_takes_the_fewest_bytes_for_its_range(low: int, span: int, width: int) -> None:
    half = 2 ** (8 * width - 1)
    low, high = max(low, -half), min(max(low, -half) + span, half - 1)
    packing = Packing.of(width, low, high)
    if low > high:
        assert packing == (width, 0)
    elif packing.bytes < width:
        assert packing.base == low
        assert high - low < 2 ** (8 * packing.bytes)
        narrower = {4: 2, 2: 1, 1: 0}.get(packing.bytes)
        assert narrower is None or high - low >= 2 ** (8 * narrower)
    else:
        assert high - low >= 2 ** (8 * (width // 2))


def test_columns_take_only_the_bytes_that_they_need() -> None:
    rows = 4_096
    table = pa.table(
        {
            "id": np.arange(rows) + 2**40,
            "code": np.arange(rows) % 200 - 100,
            "same": np.full(rows, 2**62),
            "wide": np.arange(rows) * 2**40,
            "price": np.linspace(0.0, 1.0, rows),
        }
    )
    (map_output,) = group(table, np.arange(rows, dtype=np.uint32), BufferPool(0))
    assert map_output.packing[:, 1].tolist() == [2, 1, 0, 8, 8]
    assert map_output.values.nbytes == rows * (2 + 1 + 0 + 8 + 8)


@pytest.mark.parametrize("compiled", [True, False])
def test_floats_bytes_and_booleans_are_not_packed(monkeypatch: pytest.MonkeyPatch, compiled: bool) -> None:
    if not compiled:
        monkeypatch.setattr(native, "LIBRARY", None)
    table = pa.table({"f": np.zeros(100), "b": np.ones(100, np.int8), "t": [True] * 100})
    (map_output,) = group(table, np.arange(100, dtype=np.uint32), BufferPool(0))
    assert not any(map(is_packable, table.schema.types))
    assert map_output.packing[:, 1].tolist() == [8, 1, 1]


def test_block_without_rows_of_the_slice_makes_an_empty_map_output() -> None:
    # all rows of a block can belong to other slices; then there is no range to compute
    table = pa.table({"x": np.arange(10)})
    map_outputs = group_rows(
        table.slice(0, 0),
        None,
        np.zeros(0, np.uint16),
        np.zeros(0, np.uint32),
        np.array([0, 1]),
        BufferPool(0),
    )
    assert [map_output.num_rows for map_output in map_outputs] == [0]
    (map_output,) = group_rows(
        table, None, np.full(10, 7, np.uint16), np.zeros(10, np.uint32), np.array([0, 1]), BufferPool(0)
    )
    assert map_output.num_rows == 0


EDGES = st.sampled_from([0, 2**8, 2**16, 2**32, 2**63, -(2**63)])


@by_day(60)
@given(st.sampled_from([2, 4, 8]), EDGES, st.integers(-2, 2), EDGES, st.integers(-2, 2))
def test_values_are_packed_in_the_fewest_bytes_that_hold_their_range(
    width: int, low: int, below: int, span: int, above: int
) -> None:
    first, last = low + below, low + below + abs(span) + above
    expected = (width, 0)
    if -(2**63) <= first <= last < 2**63:
        bits = (last - first).bit_length()
        narrower = [size for size in (0, 1, 2, 4) if bits <= 8 * size and size < width]
        expected = (narrower[0], first) if narrower else expected
    assert Packing.of(width, first, last) == expected


@dataclass
class ToldPart(LazyPart):
    """A block part with column statistics, right or wrong."""

    told: Mapping[int, tuple[int, int] | None] = field(default_factory=dict)
    scatters: Sequence[int] = ()
    looked_at: list[int] = field(default_factory=list)

    def select(self, columns: list[int]) -> pa.Table:
        # without the schema's metadata, as the part of a file
        return self.table.select(columns).replace_schema_metadata()

    def bounds(self, columns: Sequence[int]) -> NDArray[np.int64]:
        self.looked_at += columns
        return bounds_table([self.told.get(column) for column in columns])

    def scatter_values(
        self,
        columns: Sequence[int],
        packings: NDArray[np.int64],
        targets: NDArray[np.uint32],
        outs: ColumnMemory,
        pool: BufferPool,
    ) -> Scattered:
        told = [Packing(*packing) for packing in packings.tolist()]
        done = [
            column in self.scatters
            and self._scatter(column, packing, targets, outs.column(at, packing.bytes * len(targets)))
            for at, (column, packing) in enumerate(zip(columns, told, strict=True))
        ]
        return Scattered(np.array(done, np.bool_), {})

    def _scatter(
        self, column: int, packing: Packing, targets: NDArray[np.uint32], out: NDArray[np.uint8]
    ) -> bool:
        values = self.table.column(column).to_numpy()
        ordered = np.empty_like(values)
        ordered[targets] = values
        words = ordered.view(f"u{ordered.itemsize}")
        if packing.bytes == words.itemsize:
            out.view(words.dtype)[:] = words
            return True
        return pack_values(words, packing, out)

    def scatter_text(self, *_: object) -> None:
        return None


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("rows_given", [False, True])
@pytest.mark.parametrize("scatters", [(), (0, 1, 2, 3, 4)])
def test_wrong_statistics_do_not_change_values(
    monkeypatch: pytest.MonkeyPatch, scatters: Sequence[int], rows_given: bool, compiled: bool
) -> None:
    if not compiled:
        monkeypatch.setattr(native, "LIBRARY", None)
    rows = 1_000
    table = pa.table({f"c{i}": np.arange(rows) * 3 + i for i in range(5)})
    table = table.replace_schema_metadata({"made": "here"})
    # too narrow, reversed, a single value, beyond 64 bits, correct
    told = {0: (0, 5), 1: (900, 0), 2: (2, 2), 3: (0, 2**70), 4: (4, 3_001)}
    part = ToldPart(table, told=told, scatters=scatters)
    places = np.random.default_rng(3).permutation(rows).astype(np.uint32)
    chosen = np.arange(rows) if rows_given else None
    pool = GuardedPool()
    (map_output,) = group_rows(part, chosen, np.zeros(rows, np.uint16), places, np.array([0, 1]), pool)
    batch = place_rows(MapOutputs([map_output]), 0, rows, pool)
    pool.assert_guarded()
    assert map_output.schema.equals(table.schema, check_metadata=True)
    order = np.argsort(places)
    assert all(np.array_equal(batch.column(i), table.column(i).to_numpy()[order]) for i in range(5))
    assert map_output.packing[:, 1].tolist() == [2] * 5
    assert map_output.unpacked_bytes - map_output.nbytes == 5 * rows * (8 - 2)
    assert len(part.looked_at) == 5, "the second time nothing that is told is believed"


def test_split_without_statistics_is_not_decoded_to_find_widths() -> None:
    part = ToldPart(pa.table({"x": np.arange(50)}))
    (map_output,) = group(part, np.arange(50, dtype=np.uint32), BufferPool(0))
    assert (part.looked_at, map_output.packing[:, 1].tolist()) == ([0], [8])


@needs_library
@by_day(30)
@given(st.integers(1, 2_000), st.integers(1, 9), st.integers(1, 5), st.integers(0, 2**31))
def test_map_outputs_are_the_same_with_numpy(rows: int, columns: int, runs: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    kinds = [TYPES[int(i)] for i in rng.integers(0, len(TYPES), columns)]
    spans = [SPANS[int(i)] for i in rng.integers(0, len(SPANS), columns)]
    table = pa.table(
        {
            f"c{i}": words(kind, int(rng.integers(-100, 100)), span, rows, rng)
            for i, (kind, span) in enumerate(zip(kinds, spans, strict=True))
        }
    )
    of_run, places = rng.integers(0, runs, rows).astype(np.uint16), np.zeros(rows, np.uint32)
    given_to = (table, None, of_run, places, np.arange(runs + 1))
    compiled = group_rows(*given_to, BufferPool(0))
    with without_library():
        plain = group_rows(*given_to, BufferPool(0))
        for one, other in zip(compiled, plain, strict=True):
            assert np.array_equal(one.packing, other.packing)
            assert one.values.nbytes == other.values.nbytes
            assert rows_of(one).equals(rows_of(other))


@dataclass
class WatchedPart(ToldPart):
    """Records the addresses to which columns are decoded, and the pool's bytes in use at each ``select``."""

    pool: BufferPool = field(default_factory=lambda: BufferPool(0))
    places: list[int] = field(default_factory=list)
    together: list[int] = field(default_factory=list)
    lent: list[int] = field(default_factory=list)

    def scatter_values(
        self,
        columns: Sequence[int],
        packings: NDArray[np.int64],
        targets: NDArray[np.uint32],
        outs: ColumnMemory,
        pool: BufferPool,
    ) -> Scattered:
        self.places += outs.addresses.tolist()
        self.together.append(len(columns))
        return super().scatter_values(columns, packings, targets, outs, pool)

    def select(self, columns: list[int]) -> pa.Table:
        self.lent.append(self.pool.in_use_bytes)
        return super().select(columns)


@needs_library
def test_columns_decoded_together_are_aligned_to_words() -> None:
    rows, pool = 1_001, BufferPool(0)
    kinds = [pa.int32(), pa.int64(), pa.int16(), pa.int64()]
    table = pa.table({f"c{i}": pa.array(range(rows), kind) for i, kind in enumerate(kinds)})
    part = WatchedPart(table, scatters=range(4), pool=pool)
    (map_output,) = group(part, np.arange(rows, dtype=np.uint32), pool)
    assert rows_of(map_output).equals(table.to_batches()[0])
    assert len(part.places) == 4
    assert not any(place % 8 for place in part.places)


@needs_library
@pytest.mark.parametrize(
    ("rows", "top", "together"),
    [
        # the limit on packed bytes
        (DECODED_TOGETHER_BYTES // 8 // 3, None, [3, 3, 3]),
        # the limit on decoded bytes, a few milliseconds of work
        (2**20 // 2, 200, [4, 4, 1]),
        # a column above the limit is decoded alone
        (DECODED_TOGETHER_BYTES // 8 + 1, None, [1] * 9),
    ],
)
def test_number_of_columns_decoded_together_is_limited(
    rows: int, top: int | None, together: list[int]
) -> None:
    pool = BufferPool(0)
    table = pa.table({f"c{i}": np.arange(rows) % 200 for i in range(9)})
    told = {} if top is None else dict.fromkeys(range(9), (0, top))
    part = WatchedPart(table, told=told, scatters=range(9), pool=pool)
    (map_output,) = group(part, np.arange(rows, dtype=np.uint32), pool)
    assert rows_of(map_output).equals(table.to_batches()[0])
    assert part.together == together


@needs_library
def test_each_map_output_gets_its_decoded_rows() -> None:
    rows, rng = 2_000, np.random.default_rng(4)
    table = pa.table({"a": rng.integers(0, 200, rows), "b": rng.random(rows), "c": np.full(rows, 7)})
    part = ToldPart(table, told={0: (0, 199), 2: (7, 7)}, scatters=range(3))
    runs, places = rng.integers(0, 6, rows).astype(np.uint16), np.arange(rows, dtype=np.uint32)
    given_to = (None, runs, places, np.array([0, 2, 5, 6]), BufferPool(0))
    map_outputs, expected = group_rows(part, *given_to), group_rows(table, *given_to)
    assert len(map_outputs) == 3
    for map_output, other in zip(map_outputs, expected, strict=True):
        assert map_output.packing[:, 1].tolist() == [1, 8, 0]
        assert rows_of(map_output).equals(rows_of(other))


@needs_library
def test_decoded_columns_are_released_before_the_next_ones() -> None:
    rows, pool = 50_000, BufferPool(0)
    table = pa.table({f"c{i}": np.arange(rows) for i in range(5)})
    part = WatchedPart(table, scatters=range(4), pool=pool)
    map_outputs = group(part, np.arange(rows, dtype=np.uint32), pool)
    assert rows_of(map_outputs[0]).equals(table.to_batches()[0])
    # when the last column is selected, only the map outputs take pool memory, and no scratch
    assert part.lent == [pool.in_use_bytes]


@needs_library
@pytest.mark.parametrize("bad", [None, 0, 3, 5])
def test_column_that_overflows_is_reported(bad: int | None) -> None:
    rows, rng = 700, np.random.default_rng(1)
    columns = [rng.integers(0, 200, rows).astype(np.int64) + 7 for _ in range(6)]
    if bad is not None:
        columns[bad][rows - 1] = 6
    packing = tuple((1, 7) for _ in columns)
    outs = [np.zeros(rows, np.uint8) for _ in columns]
    packed_rows = join_columns(packing, 8, rows)
    assert packed_rows is not None
    overflow = native.group_columns(
        columns,
        8,
        packing,
        rng.permutation(rows).astype(np.uint32),
        np.empty(native.scratch_bytes(8, rows, packed_rows), np.uint8),
        np.array([rows]),
        np.array([[address_of(out)] for out in outs]),
        packed_rows,
    )
    assert overflow == bad
