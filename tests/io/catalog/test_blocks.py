from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tests.io.files import open_parquet, read_all, write
from windrow.io.catalog.blocks import CutSizes, Pieces, choose_block_bytes, cut_blocks, cut_row_groups
from windrow.io.catalog.manifest import Manifest, narrowed


def manifest_of(fragments: list[list[int]]) -> Manifest:
    sizes = [size for fragment in fragments for size in fragment]
    return Manifest(
        root="",
        schema=pa.schema([]),
        paths=pa.array([str(place) for place in range(len(fragments))], pa.large_string()),
        file_bytes=np.zeros(len(fragments), np.int64),
        footer_hashes=np.zeros((len(fragments), 16), np.uint8),
        row_group_ends=np.cumsum([len(fragment) for fragment in fragments], dtype=np.int64),
        rows=narrowed(sizes),
        encoded_bytes=narrowed(sizes),
        variable={},
        null_counts={},
    )


def whole(manifest: Manifest) -> Pieces:
    """The row groups of a manifest, none of which is cut."""
    return cut_row_groups(manifest, 1, None)


@given(
    fragments=st.lists(st.lists(st.integers(0, 20), max_size=8), max_size=8),
    target=st.integers(1, 40),
    data=st.data(),
)
def test_blocks_cover_selected_row_groups_once_and_are_filled(
    fragments: list[list[int]], target: int, data: st.DataObject
) -> None:
    kept = data.draw(st.lists(st.booleans(), min_size=len(fragments), max_size=len(fragments)))
    manifest = manifest_of(fragments)
    cuts = cut_blocks(whole(manifest), np.array(kept, np.bool_), target)
    sizes = manifest.encoded_bytes.tolist()
    covered = [g for a, b in zip(cuts.starts, cuts.stops, strict=True) for g in range(int(a), int(b))]
    first = [0, *manifest.row_group_ends.tolist()]
    assert covered == [g for f, keep in enumerate(kept) if keep for g in range(first[f], first[f + 1])]
    for block, (start, stop) in enumerate(zip(cuts.starts.tolist(), cuts.stops.tolist(), strict=True)):
        fragment = int(cuts.fragments[block])
        assert first[fragment] <= start < stop <= first[fragment + 1]
        assert stop - start == 1 or sum(sizes[start:stop]) <= target
        if stop < first[fragment + 1]:
            assert sum(sizes[start : stop + 1]) > target


def test_adjacent_files_are_joined_where_the_format_allows() -> None:
    manifest = manifest_of([[4], [4, 4], [4], [9], [1]])
    cuts = cut_blocks(whole(manifest), np.array([True, True, True, True, True]), 8, joins_files=True)
    assert list(zip(cuts.starts.tolist(), cuts.stops.tolist(), cuts.fragments.tolist(), strict=True)) == [
        (0, 2, 0),
        (2, 4, 1),
        (4, 5, 3),
        (5, 6, 4),
    ]
    # no block spans a file that is left out
    cuts = cut_blocks(whole(manifest), np.array([True, False, True, True, True]), 100, joins_files=True)
    assert list(zip(cuts.starts.tolist(), cuts.stops.tolist(), strict=True)) == [(0, 1), (3, 6)]


def test_the_automatic_size_follows_from_the_row_groups() -> None:
    mib = 2**20
    cases = [
        ([[100]] * 256, 0),
        ([[100]] * 257, mib),
        ([[2 * mib]] * 512, 4 * mib),
        ([[mib] * 2**15], 64 * mib),
    ]
    for fragments, expected in cases:
        manifest = manifest_of(fragments)
        assert choose_block_bytes(manifest, np.ones(len(fragments), np.bool_)) == expected
    # of the files that are kept
    kept = np.arange(512) < 256
    assert choose_block_bytes(manifest_of([[2 * mib]] * 512), kept) == 0


def test_no_fragments_no_blocks() -> None:
    assert len(cut_blocks(whole(manifest_of([])), np.zeros(0, np.bool_), 1).starts) == 0


def test_fixed_width_bytes_are_exact(tmp_path: Path) -> None:
    table = pa.table(
        {
            "i": pa.array(range(99), pa.int32()),
            "b": pa.array([True, None, False] * 33),
            "d": pa.array([1] * 99).cast(pa.decimal128(20, 0)),
            "l": pa.array([[1, 2, 3]] * 99, pa.list_(pa.int16(), 3)),
            "s": pa.array([{"x": 1, "y": 2}] * 99, pa.struct([("x", pa.int8()), ("y", pa.float64())])),
            "n": pa.nulls(99),
        }
    )
    blocks = open_parquet(write(tmp_path / "t.parquet", table)).blocks
    assert blocks.bytes_exact
    assert blocks.decoded_bytes.tolist() == [99 * 4 + 13 + 99 * 16 + 99 * 6 + 99 * 9]
    assert blocks.memory_bytes.tolist() == blocks.decoded_bytes.tolist()


def test_estimates_of_variable_width_bytes_are_close(tmp_path: Path) -> None:
    """Repeated text and short lists are encoded far below their memory size; estimates must not be."""
    rows = 10_000
    table = pa.table(
        {
            "repeated": ["the same text of thirty letters"] * rows,
            "unique": [f"{place:012}" for place in range(rows)],
            "lists": [[place % 3] * (place % 5) for place in range(rows)],
            "codes": pa.array(["a", "b"] * (rows // 2)).dictionary_encode(),
            "texts": [["some"] * 3] * rows,
        }
    )
    path = write(tmp_path / "t.parquet", table, row_group_size=3_000)
    for name in table.column_names:
        source = open_parquet(path, columns=[name])
        blocks = source.blocks
        assert not blocks.bytes_exact
        assert (blocks.memory_bytes >= blocks.decoded_bytes).all()
        held = read_all(source).nbytes
        assert 0.9 * held <= blocks.memory_bytes.sum() <= 1.6 * held, name


def test_pieces_have_the_rows_of_a_page() -> None:
    sizes = CutSizes()
    # numbers: 24 columns, pages of 20,000 rows
    assert sizes.piece_rows(12_500_000, 2_400_000_000, 24, 9 * 2**20) == 100_000
    # a wide table, of which a page of each column has all rows
    assert sizes.piece_rows(20_000, 80_000_000, 1_000, 2**20) == 20_000
    assert sizes.piece_rows(100_000, 400_000_000, 1_000, 2**20) == 20_000
    # strings of 1 MiB, of which a page has 1,024
    assert sizes.piece_rows(2_300, 2_300 * 2**20, 2, 9 * 2**20) == 256
    # a row group of the size of blocks is one
    assert sizes.piece_rows(10**6, 60 * 2**20, 8, 2**20) == 10**6


@given(
    fragments=st.lists(st.lists(st.integers(0, 60), max_size=5), max_size=5),
    target=st.integers(1, 40),
    page_rows=st.integers(1, 12),
)
def test_pieces_divide_large_row_groups(fragments: list[list[int]], target: int, page_rows: int) -> None:
    manifest = manifest_of(fragments)
    sizes = CutSizes(min_bytes=10, max_bytes=20, min_piece_bytes=5, batch_rows=1, page_rows=page_rows)
    pieces = cut_row_groups(manifest, target, sizes)
    rows = pieces.manifest.rows.astype(np.int64)
    # as stored, one after another
    assert np.array_equal(np.bincount(pieces.groups, rows, manifest.row_groups), manifest.rows)
    assert np.array_equal(
        np.bincount(pieces.groups, pieces.manifest.encoded_bytes, manifest.row_groups), manifest.encoded_bytes
    )
    for group, size in enumerate(manifest.encoded_bytes.tolist()):
        own = np.flatnonzero(pieces.groups == group)
        assert pieces.first_rows[own].tolist() == np.append(0, np.cumsum(rows[own])[:-1]).tolist()
        assert (pieces.is_cut[own] == (len(own) > 1)).all()
        if size <= max(min(max(4 * target, 10), 20), target):
            assert len(own) == 1
        elif size >= 2 * (max(target, 5) + page_rows):
            assert len(own) > 1
        if (rows[own][:-1] > page_rows).any():
            assert not (pieces.first_rows[own] % page_rows).any()
    owners = np.repeat(np.arange(len(fragments)), np.diff(pieces.manifest.row_group_ends, prepend=0))
    assert np.array_equal(
        owners, np.repeat(np.arange(len(fragments)), [len(f) for f in fragments])[pieces.groups]
    )
    cuts = cut_blocks(pieces, np.ones(len(fragments), np.bool_), target, joins_files=True)
    alone = pieces.is_cut[cuts.starts]
    assert (cuts.stops - cuts.starts)[alone].tolist() == [1] * int(alone.sum())
    assert int(alone.sum()) == int(pieces.is_cut.sum())
