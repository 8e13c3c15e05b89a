"""Mutation testing of the C functions, by seed: ``python -m tests.sanitized.mutations FIRST COUNT``.

Prints the first seed of each hundred before it runs them, so that a crash can be located.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import product
from typing import Any

import tests.sanitized.loading  # isort: skip # noqa: F401 - before windrow
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from windrow.core.buffer_pool import BufferPool
from windrow.core.errors import SourceError
from windrow.core.frame_of_reference import Packing
from windrow.io.parquet import chunk_decoder, footer_validation
from windrow.io.parquet.chunk_decoder import Chunk, StoredFooter
from windrow.shuffle.kernels.arrow_columns import move_text

ROWS = 120
TEXT = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())
WORDS = (pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.timestamp("us"))


class ExactPool(BufferPool):
    """A pool whose buffers have exactly the requested size, so that overruns are detected."""

    def __init__(self) -> None:
        super().__init__(0)

    def take_many(self, nbytes: int, count: int) -> list[NDArray[np.uint8]]:
        return [np.empty(nbytes, np.uint8) for _ in range(count)]


@dataclass(frozen=True)
class Base:
    """A valid column chunk: its pages, its metadata in the footer, and the complete footer."""

    kind: pa.DataType
    pages: bytes
    chunk: Chunk
    footer: bytes
    leaves: tuple[int, int]


def make_bases() -> list[Base]:
    """Make column chunks of all kinds that the decoder supports, as written by pyarrow."""
    rng = random.Random(0)
    choices = product((*WORDS, *TEXT), ("none", "snappy"), ("1.0", "2.0"), (False, True))
    return [make_base(*choice, rng) for choice in choices]


def make_base(
    kind: pa.DataType, compression: str, version: str, dictionary: bool, rng: random.Random
) -> Base:
    numbers = [rng.randrange(9 if dictionary else 2**20) for _ in range(ROWS)]
    if kind in TEXT:
        column = pa.array(["text " * (number % 7) + str(number) for number in numbers], pa.string()).cast(
            kind
        )
    else:
        column = pa.array(numbers, pa.int32() if kind.bit_width == 32 else pa.int64())
        column = pa.Array.from_buffers(kind, ROWS, column.buffers())
    nullable = rng.random() < 0.5
    fields = [pa.field("x", kind, nullable=nullable), pa.field("n", pa.list_(pa.struct({"a": pa.int8()})))]
    table = pa.table([column, [[{"a": 1}]] * ROWS], schema=pa.schema(fields))
    sink = BytesIO()
    pq.write_table(
        table,
        sink,
        compression=compression,
        data_page_version=version,
        use_dictionary=dictionary,
        data_page_size=rng.choice([64, 2**20]),
        write_batch_size=rng.choice([16, 1024]),
        store_schema=kind in (pa.large_string(), pa.large_binary()),
    )
    content = sink.getvalue()
    metadata = pq.read_metadata(BytesIO(content))
    chunk = StoredFooter(metadata).chunk(0, "x", kind)
    assert chunk is not None, (kind, compression, version, dictionary)
    pages = content[chunk.start : chunk.start + chunk.size_bytes]
    footer = content[-8 - metadata.serialized_size : -8]
    return Base(kind, pages, chunk, footer, (metadata.num_row_groups, metadata.num_columns))


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
    pages = mutate(base.pages, rng, [other.pages for other in bases])
    facts = dict(vars(base.chunk), start=0, size_bytes=len(pages))
    facts["rows"] += rng.choice([0, 0, 0, 1, -1, 50])
    facts["snappy"] ^= rng.random() < 0.1
    facts["optional"] ^= rng.random() < 0.1
    facts["raw_bytes"] += rng.choice([0, 0, 0, -1, -40, 100])
    chunk = Chunk(**{**facts, "rows": max(0, facts["rows"]), "raw_bytes": max(0, facts["raw_bytes"])})
    file = pa.BufferReader(pa.py_buffer(copy_exactly(pages)))
    chunk_decoder._SCRATCH.memory = np.empty(rng.choice([0, 64, 1000, 2**16]), np.uint8)
    targets = draw_targets(chunk.rows, rng)
    if chunk.width:
        narrow = [size for size in (0, 1, 2, 4, 8) if size <= chunk.width]
        packing = Packing(rng.choice([chunk.width, *narrow]), 0)
        out = np.empty(packing.bytes * chunk.rows, np.uint8)
        chunk_decoder.decode(file, [[chunk]], [packing], targets, [out])
        return
    middle = rng.randrange(chunk.rows + 1)
    cuts = [slice(0, middle), slice(middle, chunk.rows)]
    arrays = chunk_decoder.decode_text(file, [chunk], base.kind, targets, cuts, ExactPool())
    for array in arrays or ():
        array.cast(pa.large_binary()).validate(full=True)


def check_footer(base: Base, bases: Sequence[Base], rng: random.Random) -> None:
    """Parse mutated footers."""
    raw = mutate(base.footer, rng, [other.footer for other in bases])
    # input that is only too long is read to its end
    footer_validation.check_footer(raw, np.full(base.leaves, -1, np.int64))


def move_texts(base: Base, bases: Sequence[Base], rng: random.Random) -> None:
    """Move text with offsets that decrease or point outside the text."""
    kind = rng.choice(TEXT)
    word = np.int64 if kind in (pa.large_string(), pa.large_binary()) else np.int32
    arrays, targets, total = [], [], 0
    for _ in range(rng.choice([1, 2, 3])):
        rows = rng.randrange(40)
        lengths = [rng.choice([0, 3, 8, 40]) for _ in range(rows)]
        offsets = np.cumsum([0, *lengths], dtype=word)
        text = copy_exactly(bytes(int(offsets[-1])))
        start = rng.randrange(rows + 1)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
        arrays.append(pa.Array.from_buffers(kind, rows - start, buffers, null_count=0, offset=start))
        total += rows - start
        # corrupt the offsets after Arrow has validated them
        for _ in range(rng.choice([0, 0, 1, 3])):
            offsets[rng.randrange(rows + 1)] = rng.choice([0, -1, 5, 2**31 - 1, -(2**31), rows])
    places, end = draw_targets(total, rng), 0
    for array in arrays:
        targets.append(places[end : end + len(array)].copy())
        end += len(array)
    first = rng.randrange(total + 1)
    try:
        moved = move_text(arrays, targets, slice(first, rng.randint(first, total)), ExactPool(), "text")
    except SourceError:
        return
    assert moved is not None
    moved.cast(pa.large_binary()).validate(full=True)


KINDS: tuple[Callable[[Base, Sequence[Base], random.Random], Any], ...] = (
    decode_pages,
    decode_pages,
    check_footer,
    move_texts,
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
