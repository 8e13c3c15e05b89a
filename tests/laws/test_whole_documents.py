"""pack(split_documents=False): each document once and whole, by best fit over its window, for all readers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from tests.laws.examples import examples
from windrow.core.errors import StateError

pytestmark = pytest.mark.usefixtures("small_runs")

EOS, PAD, NOBODY = 7_000, -1, -1


class Case(NamedTuple):
    # the tokens of each document, by block
    blocks: tuple[tuple[int, ...], ...]
    seq_len: int
    window: int
    seed: int | None
    long_documents: str
    has_eos: bool
    boundaries: bool


class Reader(NamedTuple):
    shards: int
    batch_size: int


cases = st.builds(
    Case,
    blocks=st.lists(
        st.lists(st.integers(0, 14), min_size=1, max_size=12).map(tuple), min_size=1, max_size=6
    ).map(tuple),
    seq_len=st.integers(2, 12),
    window=st.integers(1, 3),
    seed=st.sampled_from([None, 3, 4]),
    long_documents=st.sampled_from(["cut", "drop"]),
    has_eos=st.booleans(),
    boundaries=st.booleans(),
)
# blocks without pieces would hide where windows end
cases = cases.filter(lambda case: all(pieces_of(case)))
readers = st.builds(Reader, shards=st.integers(1, 3), batch_size=st.integers(1, 4))


def make_documents(blocks: pa.Table) -> pa.Table:
    sizes = [size for lengths in blocks.column("sizes").to_pylist() for size in lengths]
    firsts = zip(blocks.column("first").to_pylist(), blocks.column("sizes").to_pylist(), strict=True)
    names = [first + at for first, lengths in firsts for at in range(len(lengths))]
    tokens = [[100 * name + at for at in range(size)] for name, size in zip(names, sizes, strict=True)]
    return pa.table({"t": pa.array(tokens, pa.list_(pa.int32())), "name": pa.array(names, pa.int64())})


def pipelines_of(
    case: Case, executor: str = "threads"
) -> tuple[windrow.DatasetPipeline, windrow.DatasetPipeline]:
    """The pipeline of pieces, by number, in their order, and that of sequences."""
    documents = make_pipeline(case, [list(lengths) for lengths in case.blocks], executor)
    pieces = make_pipeline(case, [[1] * len(block) for block in pieces_of(case)], executor)
    packed = documents.pack(
        case.seq_len,
        ["t", "name"],
        eos=EOS if case.has_eos else None,
        split_documents=False,
        pad=PAD,
        long_documents=case.long_documents,  # type: ignore[arg-type]
        boundaries=case.boundaries,
    )
    return pieces, packed


def make_pipeline(case: Case, blocks: list[list[int]], executor: str) -> windrow.DatasetPipeline:
    firsts = np.cumsum([0, *map(len, blocks)])[:-1]
    # a row is a block
    source = windrow.from_arrow(pa.table({"sizes": blocks, "first": firsts}), target_block_bytes=1)
    assert source.num_blocks() == len(blocks)
    source = source.map_batches(make_documents, batch_format="pyarrow", preserves_rows=False)
    pipe = source.window(blocks_per_window=case.window).repeat(3).options(executor=executor)
    return pipe if case.seed is None else pipe.random_shuffle_each_window(seed=case.seed)


def pieces_of(case: Case) -> list[list[list[tuple[int, int]]]]:
    """What is packed, by block: lists of a document's tokens with its name."""
    found: list[list[list[tuple[int, int]]]] = []
    name = 0
    for lengths in case.blocks:
        found.append([])
        for size in lengths:
            tokens = [(100 * name + at, name) for at in range(size)]
            if case.has_eos and tokens:
                tokens.append((EOS, name))
            if len(tokens) <= case.seq_len or case.long_documents == "cut":
                firsts = range(0, max(1, len(tokens)), case.seq_len)
                found[-1] += [tokens[at : at + case.seq_len] for at in firsts]
            name += 1
    return found


def windows_of(case: Case, order: Sequence[int]) -> list[list[int]]:
    """The pieces of an epoch by window: a window has all pieces of its blocks."""
    sizes = list(map(len, pieces_of(case)))
    block_of = np.repeat(np.arange(len(sizes)), sizes).tolist()
    windows: list[list[int]] = [[]]
    for piece in order:
        blocks = {block_of[each] for each in windows[-1]}
        if len(blocks) == case.window and len(windows[-1]) == sum(sizes[block] for block in blocks):
            windows.append([])
        windows[-1].append(piece)
    return windows


def best_fit(case: Case, order: Sequence[int]) -> list[list[tuple[int, int]]]:
    """The sequences of a window, by their first pieces: a search through all of them for each piece."""
    of_all = [piece for block in pieces_of(case) for piece in block]
    pieces = [of_all[number] for number in order if of_all[number]]
    sequences: list[list[int]] = []
    used_last: list[int] = []
    for time, at in enumerate(sorted(range(len(pieces)), key=lambda at: -len(pieces[at]))):
        rooms = [case.seq_len - sum(len(pieces[each]) for each in sequence) for sequence in sequences]
        fitting = [number for number, room in enumerate(rooms) if room >= len(pieces[at])]
        if not fitting:
            fitting = [len(sequences)]
            sequences.append([])
            used_last.append(time)
            rooms.append(case.seq_len)
        chosen = min(fitting, key=lambda number: (rooms[number], -used_last[number]))
        sequences[chosen].append(at)
        used_last[chosen] = time
    found = []
    for sequence in sorted(map(sorted, sequences)):
        tokens = [token for at in sequence for token in pieces[at]]
        found.append(tokens + [(PAD, NOBODY)] * (case.seq_len - len(tokens)))
    return found


def rows_of(batch: dict[str, Any]) -> list[list[tuple[int, int]]]:
    both = np.stack([batch["t"], batch["name"]], axis=-1)
    return [[(int(token), int(name)) for token, name in row] for row in both]


def check_boundaries(batch: dict[str, Any]) -> None:
    positions, segments = batch["position_ids"], batch["segment_ids"]
    assert positions.dtype == segments.dtype == np.int32
    begins = []
    for row, (tokens, names) in enumerate(zip(batch["t"], batch["name"], strict=True)):
        assert ((segments[row] == -1) == (names == NOBODY)).all()
        firsts = np.flatnonzero(positions[row] == 0)
        assert firsts[0] == 0
        assert (np.diff(positions[row])[np.diff(segments[row]) == 0] == 1).all()
        real = segments[row][segments[row] >= 0]
        assert np.unique(real).tolist() == list(range(len(np.unique(real))))
        for first, stop in zip(firsts, [*firsts[1:], len(tokens)], strict=True):
            assert len(set(names[first:stop])) == len(set(segments[row][first:stop])) == 1
            begins.append(row * len(tokens) + first)
    cu_seqlens, max_seqlen = windrow.cu_seqlens(positions)
    assert cu_seqlens.tolist() == [*begins, positions.size]
    assert cu_seqlens.dtype == np.int32
    assert max_seqlen == max(np.diff(cu_seqlens))


def read(
    packed: windrow.DatasetPipeline, reader: Reader, state: Any, stop: int | None
) -> tuple[dict[int, Any], Any]:
    """The sequences by epoch, in global order, and the state of all shards after ``stop`` steps."""
    shards = packed.split(reader.shards, state_dict=state)
    epochs: dict[int, Any] = {}
    steps = 0
    try:
        for opened in zip(*(shard.iter_epochs() for shard in shards), strict=True):
            own = epochs.setdefault(opened[0].number, [])
            iterators = [epoch.iter_batches(reader.batch_size) for epoch in opened]
            for batches in zip_longest(*iterators):
                own += [batch for batch in batches if batch is not None]
                steps += 1
                if steps == stop:
                    states = [shard.state_dict() for shard in shards]
                    assert all(state == states[0] for state in states)
                    return epochs, states[0]
    finally:
        for shard in shards:
            shard.close()
    return epochs, None


def check(case: Case, reader: Reader, other: Reader, stop: int, executor: str = "threads") -> None:
    pieces, packed = pipelines_of(case, executor)
    orders = [[row["name"] for row in epoch.iter_rows()] for epoch in pieces.iter_epochs()]
    whole, _ = read(packed, Reader(1, 2), None, None)
    for number, order in enumerate(orders):
        found = [row for batch in whole[number] for row in rows_of(batch)]
        for batch in whole[number] if case.boundaries else []:
            check_boundaries(batch)
        for own_pieces in windows_of(case, order):
            expected = best_fit(case, own_pieces)
            own, found = found[: len(expected)], found[len(expected) :]
            if case.seed is None:
                assert own == expected
            else:
                assert Counter(map(tuple, own)) == Counter(map(tuple, expected))
        assert not found
    assert packed.count() == sum(len(batch["t"]) for batch in whole[0])
    first, state = read(packed, reader, None, stop)
    second = {} if state is None else read(packed, other, state, None)[0]
    for number, batches in whole.items():
        rows = [row for each in (first, second) for batch in each.get(number, []) for row in rows_of(batch)]
        assert rows == [row for batch in batches for row in rows_of(batch)]


@examples(25)
@given(case=cases, reader=readers, other=readers, stop=st.integers(1, 12))
def test_any_documents(case: Case, reader: Reader, other: Reader, stop: int) -> None:
    check(case, reader, other, stop)


SCRIPT = Case(((5, 3, 9, 0, 2), (6, 6, 1), (11, 4, 4, 2), (3, 8)), 8, 2, 3, "cut", True, True)


def test_on_ray(ray_local: None) -> None:
    check(SCRIPT, Reader(2, 2), Reader(3, 1), 4, executor="ray")


def test_golden_order() -> None:
    """The document that each sequence begins with: such orders never change."""
    _, packed = pipelines_of(SCRIPT)
    with packed.iterator() as shard:
        epochs = [
            [name for batch in epoch.iter_batches(3) for name in batch["name"][:, 0].tolist()]
            for epoch in shard.iter_epochs()
        ]
    assert epochs == [
        [2, 5, 7, 4, 2, 6, 11, 8, 13, 12, 13],
        [2, 13, 1, 4, 2, 6, 10, 8, 7, 5, 8],
        [11, 5, 7, 8, 8, 6, 13, 13, 2, 2, 1],
    ]


def test_states_name_the_packing() -> None:
    _, packed = pipelines_of(SCRIPT)
    with packed.iterator() as shard:
        next(iter(shard.iter_batches(2)))
        state = shard.state_dict()
    of_documents = "columns, eos, options of pack"
    for change, told in (
        ({"long_documents": "drop"}, of_documents),
        ({"has_eos": False}, of_documents),
        ({"boundaries": False}, of_documents),
        ({"seq_len": 9}, rf"pack +sequences of {SCRIPT.seq_len} +sequences of 9$"),
    ):
        _, other = pipelines_of(SCRIPT._replace(**change))
        with pytest.raises(StateError, match=told):
            other.iterator(state_dict=state)
