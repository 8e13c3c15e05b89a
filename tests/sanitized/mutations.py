"""Mutation testing of the C functions, by seed: ``python -m tests.sanitized.mutations FIRST COUNT``.

Prints the first seed of each hundred before it runs them, so that a crash can be located.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

import tests.sanitized.loading  # isort: skip # noqa: F401 - before windrow
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tests.sanitized.base_columns import NESTED, TEXT, Base, make_bases
from windrow.core.buffer_pool import BufferPool
from windrow.core.column_memory import ColumnMemory
from windrow.core.errors import SourceError
from windrow.core.frame_of_reference import Packing
from windrow.core.native_libraries import address_of
from windrow.core.text_types import offset_width
from windrow.io.parquet import chunk_decoder, footer_validation
from windrow.io.parquet.chunk_decoder import decode_nested
from windrow.io.parquet.chunks import NUMBERS, Chunk, chunk_table
from windrow.io.parquet.decoder_library import CODECS, SCRATCH
from windrow.io.parquet.page_index import ChunkPages, StoredChunk, measure_dictionary, read_headers
from windrow.io.parquet.stored_chunks import NestedLeaf
from windrow.shuffle.kernels.fixed_width import fixed_width_bytes
from windrow.shuffle.kernels.nested_columns import NestedColumn, Targets, move_nested


class ExactPool(BufferPool):
    """A pool whose buffers have exactly the requested size, so that overruns are detected."""

    def __init__(self) -> None:
        super().__init__(0)

    def take_many(self, nbytes: int, count: int) -> list[NDArray[np.uint8]]:
        return [np.empty(nbytes, np.uint8) for _ in range(count)]


# one for all: a pool allocates 31 MiB when it is made, which the sanitizer would track each time
POOL = ExactPool()


def mutate(content: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Mutate bytes: overwrite, truncate, repeat, or insert content from elsewhere."""
    changed = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 4])):
        at = rng.randrange(len(changed) + 1)
        stop = at + rng.choice([1, 1, 2, 8, 64])
        how = rng.randrange(7)
        if how == 0 and at < len(changed):
            changed[at] ^= 1 << rng.randrange(8)
        elif how == 1 and at < len(changed):
            changed[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        elif how == 2:
            changed[at:stop] = rng.randbytes(stop - at)
        elif how == 3:
            del changed[at:stop]
        elif how == 4:
            changed[at:at] = changed[at:stop]
        elif how == 5:
            other = rng.choice(others)
            start = rng.randrange(len(other))
            changed[at:stop] = other[start : start + stop - at]
        else:
            del changed[at:]
    return bytes(changed)


def copy_exactly(content: bytes) -> NDArray[np.uint8]:
    """Copy bytes to a buffer of exactly their size."""
    return np.frombuffer(content, np.uint8).copy()


def draw_targets(rows: int, rng: random.Random) -> NDArray[np.uint32]:
    return np.random.default_rng(rng.randrange(2**32)).permutation(rows).astype(np.uint32)


def decode_pages(base: Base, bases: Sequence[Base], rng: random.Random) -> None:
    """Decode mutated pages, and pages with the metadata of others."""
    SCRATCH.memory = np.empty(rng.choice([0, 64, 1000, 2**16]), np.uint8)
    (decode_nested_pages if base.kind in NESTED else decode_flat_pages)(base, bases, rng)


def decode_flat_pages(base: Base, bases: Sequence[Base], rng: random.Random) -> None:
    """Decode one or two chunks, of which the last is mutated."""
    sound, mutated = copy_exactly(base.pages[0]), mutate_pages(base, bases, rng)
    facts = base.chunks[0]._asdict()
    facts["rows"] += rng.choice([0, 0, 0, 1, -1, 50])
    facts["raw_bytes"] += rng.choice([0, 0, 0, -1, -40, 100])
    facts["optional"] ^= rng.random() < 0.1
    facts["has_nulls"] ^= facts["optional"] and rng.random() < 0.2
    if rng.random() < 0.1:
        facts["codec"] = rng.choice(list(CODECS))
    if rng.random() < 0.1 and not pa.types.is_boolean(base.kind) and base.kind not in TEXT:
        facts["width"] = rng.choice([1, 4, 8, 16] if pa.types.is_decimal(base.kind) else [4, 8])
    for name in ("rows", "raw_bytes"):
        facts[name] = max(0, facts[name])
    if rng.random() < 0.4:
        facts |= draw_range(facts["rows"], len(mutated), rng)
    chunks = [Chunk(**{**facts, "start": 0, "size_bytes": len(mutated)})]
    content = np.concatenate([mutated, sound]) if rng.random() < 0.3 else mutated
    if len(content) > len(mutated):
        first = Chunk(**{**base.chunks[0]._asdict(), "start": len(mutated)})
        # a footer can state nulls of one row group, and deny those of another
        chunks.insert(rng.randrange(2), first)
    file = pa.BufferReader(pa.py_buffer(content))
    targets = draw_targets(sum(chunk.rows for chunk in chunks), rng)
    if base.kind not in TEXT:
        width = fixed_width_bytes(base.kind)
        packing = Packing(width, 0)
        if all(chunk.kind == NUMBERS and chunk.width == width for chunk in chunks):
            packing = Packing(rng.choice([size for size in (0, 1, 2, 4, 8) if size <= width]), 0)
        out = np.empty(packing.bytes * len(targets), np.uint8)
        outs = ColumnMemory(out, np.zeros(1, np.int64))
        table = chunk_table(chunks)[None]
        chunk_decoder.decode(file, table, np.array([packing]), targets, outs, POOL)
        return
    middle = rng.randrange(len(targets) + 1)
    cuts = [slice(0, middle), slice(middle, len(targets))]
    arrays = chunk_decoder.decode_text(file, chunks, base.kind, targets, cuts, POOL)
    for array in arrays or ():
        array.cast(pa.large_binary()).validate(full=True)


def draw_range(rows: int, size_bytes: int, rng: random.Random) -> dict[str, Any]:
    """Facts of a chunk of which some rows are read, and in some cases a dictionary that lies apart."""
    first, stop = sorted(rng.randint(0, rows) for _ in range(2))
    facts: dict[str, Any] = {"before": first, "rows": stop - first}
    facts["behind"] = max(0, rows - stop + rng.choice([0, 0, 0, -1, 7]))
    if rng.random() < 0.4:
        begin, end = sorted(rng.randint(0, size_bytes) for _ in range(2))
        facts["dictionary"] = rng.choice([0, begin]), end - begin
    return facts


def find_pages(base: Base, bases: Sequence[Base], rng: random.Random) -> None:
    """Look for the pages of some rows in mutated pages."""
    content = mutate_pages(base, bases, rng)
    chunk = base.chunks[0]
    repetition = int(isinstance(chunk, NestedLeaf) and chunk.list_level >= 0)
    stored = StoredChunk(0, len(content), max(chunk.rows, 1), rng.choice([repetition, 0, 1]), chunk.codec)
    first, stop = sorted(rng.randint(0, stored.rows) for _ in range(2))
    pages = ChunkPages(stored, piece_bytes=rng.choice([None, 1, 64, 4096]))

    def read(begin: int, end: int) -> pa.Buffer:
        return pa.py_buffer(copy_exactly(content[begin:end].tobytes()))

    span = pages.cover(read, first, max(stop, first + 1))
    if span is not None:
        # the last page can be said to end beyond the file
        assert 0 <= span.start <= min(span.stop, len(content))
        assert span.first_row <= first
        read_headers(read(span.start, span.stop))
    measure_dictionary(read(0, len(content)))


def decode_nested_pages(base: Base, bases: Sequence[Base], rng: random.Random) -> None:
    """Decode one or two row groups, in each of which a leaf can be mutated."""
    pages: list[NDArray[np.uint8]] = []
    groups: list[tuple[NestedLeaf, ...]] = []
    for _ in range(rng.choice([1, 1, 2])):
        leaves, chosen = [], rng.randrange(len(base.chunks))
        shift = rng.choice([0, 0, 0, 1, -1, 50])
        for at, chunk in enumerate(base.chunks):
            facts = dict(chunk._asdict(), start=sum(map(len, pages)))
            facts["rows"] = max(0, facts["rows"] + shift)
            if at == chosen:
                pages.append(mutate_pages(base, bases, rng))
                facts["values"] = max(facts["rows"], facts["values"] + rng.choice([0, 0, 0, 1, -1, 50, -500]))
                if rng.random() < 0.1:
                    facts["codec"] = rng.choice(list(CODECS))
                if facts["list_level"] >= 0 and rng.random() < 0.1:
                    facts["list_level"] = rng.randrange(facts["max_level"])
                if rng.random() < 0.05:
                    facts["max_level"] += 1
                if rng.random() < 0.2:
                    facts["ahead"] = pa.py_buffer(mutate_pages(base, bases, rng))
            else:
                pages.append(copy_exactly(base.pages[at]))
            leaves.append(NestedLeaf(**dict(facts, size_bytes=len(pages[-1]))))
        groups.append(tuple(leaves))
    file = pa.BufferReader(pa.py_buffer(np.concatenate(pages)))
    found = decode_nested(file, groups, base.kind, POOL)
    if found is not None:
        found.validate(full=True)
        assert len(found) == sum(leaves[0].rows for leaves in groups)


def mutate_pages(base: Base, bases: Sequence[Base], rng: random.Random) -> NDArray[np.uint8]:
    return copy_exactly(
        mutate(rng.choice(base.pages), rng, [pages for other in bases for pages in other.pages])
    )


def check_footer(base: Base, bases: Sequence[Base], rng: random.Random) -> None:
    """Parse mutated footers."""
    raw = mutate(base.footer, rng, [other.footer for other in bases])
    # input that is only too long is read to its end
    footer_validation.check_footer(raw, np.full(base.leaves, -1, np.int64))


MOVED = (
    *TEXT,
    pa.list_(pa.int16()),
    pa.large_list(pa.bool_()),
    pa.list_(pa.list_(pa.string())),
    pa.list_(pa.large_list(pa.struct({"a": pa.int32(), "b": pa.large_string()}))),
    pa.struct({"a": pa.list_(pa.int8()), "b": pa.decimal128(9, 1)}),
    pa.list_(pa.list_(pa.binary(), 2), 3),
    pa.large_list(pa.list_(pa.list_(pa.int64(), 2))),
)


def make_moved(
    kind: pa.DataType, items: int, offsets: list[NDArray[Any]], rng: random.Random, before: int = 0
) -> pa.Array:
    """An array of zeros without its first items; appends its offsets, at every level."""
    count = before + items
    valid = pa.py_buffer(copy_exactly(rng.randbytes(-(-count // 8)))) if rng.random() < 0.4 else None
    if pa.types.is_struct(kind):
        fields = [make_moved(field.type, count, offsets, rng) for field in kind]
        return pa.Array.from_buffers(kind, items, [valid], offset=before, children=fields)
    if pa.types.is_fixed_size_list(kind):
        child = make_moved(kind.value_type, count * kind.list_size, offsets, rng)
        return pa.Array.from_buffers(kind, items, [valid], offset=before, children=[child])
    width = fixed_width_bytes(kind)
    if width:
        zeros = np.zeros(-(-count // 8) if pa.types.is_boolean(kind) else width * count, np.uint8)
        return pa.Array.from_buffers(kind, items, [valid, pa.py_buffer(zeros)], offset=before)
    is_large = pa.types.is_large_list(kind) or offset_width(kind) == 8
    lengths = [rng.choice([0, 1, 3, 20 if offset_width(kind) else 2]) for _ in range(count)]
    own = np.cumsum([0, *lengths], dtype=np.int64 if is_large else np.int32)
    offsets.append(own)
    buffers = [valid, pa.py_buffer(own)]
    if offset_width(kind):
        text = pa.py_buffer(copy_exactly(bytes(int(own[-1]))))
        return pa.Array.from_buffers(kind, items, [*buffers, text], offset=before)
    child = make_moved(kind.value_type, int(own[-1]), offsets, rng, rng.choice([0, 0, 3]))
    return pa.Array.from_buffers(kind, items, buffers, offset=before, children=[child])


def move_rows(base: Base, bases: Sequence[Base], rng: random.Random) -> None:
    """Move text, lists and structs with offsets that decrease or point outside the values, at any level."""
    kind = rng.choice(MOVED)
    arrays, firsts = [], []
    for _ in range(rng.choice([1, 2, 3])):
        offsets: list[NDArray[Any]] = []
        arrays.append(make_moved(kind, rng.randrange(40), offsets, rng, rng.choice([0, 0, 5])))
        firsts.append(rng.choice([0, 0, rng.randrange(len(arrays[-1]) + 1)]))
        # corrupt the offsets after Arrow has validated them
        for _ in range(rng.choice([0, 0, 1, 3]) if offsets else 0):
            own = rng.choice(offsets)
            own[rng.randrange(len(own))] = rng.choice([0, -1, 5, 2**31 - 1, -(2**31), len(own)])
    counts = [len(array) - first for array, first in zip(arrays, firsts, strict=True)]
    places = draw_targets(sum(counts), rng)
    held = [each.copy() for each in np.split(places, np.cumsum(counts)[:-1])]
    targets = [Targets(first, len(each), address_of(each)) for first, each in zip(firsts, held, strict=True)]
    start = rng.randrange(len(places) + 1)
    rows = slice(start, rng.randint(start, len(places)))
    try:
        columns = [NestedColumn.of(array, "name") for array in arrays]
        moved = move_nested(columns, kind, targets, rows, POOL, "name")
    except SourceError:
        return
    assert moved is not None
    moved.validate(full=True)


KINDS: tuple[Callable[[Base, Sequence[Base], random.Random], Any], ...] = (
    decode_pages,
    decode_pages,
    find_pages,
    check_footer,
    move_rows,
)


def main(first: int, count: int) -> None:
    """Run ``count`` seeds."""
    bases = make_bases()
    for seed in range(first, first + count):
        if (seed - first) % 100 == 0:
            print("seeds from", seed, flush=True)
        rng = random.Random(seed)
        rng.choice(KINDS)(rng.choice(bases), bases, rng)
    print("all", count)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
