"""The state of a stream: what was consumed, of which data and in which order, as JSON values.

A state names the data and order that it belongs to, so that loading it elsewhere, where the same
point would hold other rows, is an error. It is pure data: loading one runs no code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from windrow.core.byte_sizes import format_bytes
from windrow.core.errors import StateError
from windrow.core.integers import as_integer
from windrow.pipeline.checkpoint.cursor import Cursor
from windrow.pipeline.plan.job import Job
from windrow.pipeline.plan.program import Program
from windrow.shuffle.order.keys import ORDER_VERSION

__all__ = [
    "State",
    "check_cursor",
    "check_state",
    "describe_stream",
    "find_differences",
    "make_seed_error",
    "parse_state",
    "resume",
]

_FORMAT = "windrow state"
_FORMAT_VERSION = 1
_DIGEST_DIGITS = 16

_TEXTS = ("fingerprint", "schema", "sizes", "filter")
_CORRUPT = "corrupt"
_COUNTS = ("order", "files", "rows", "block_bytes", "row_changes", "epoch", "row", "window", "window_row")
_MAYBE = ("blocks_per_window", "bytes_per_window", "seed", "shards", "batch_size")


@dataclass(frozen=True)
class State:
    """A parsed state.

    Attributes
    ----------
    order
        Version of the algorithm that defines the order.
    fingerprint, schema, files, rows
        The data: a digest of it, a digest of its columns, and its stored files and rows.
    block_bytes, blocks_per_window, bytes_per_window, sizes
        How it is cut into blocks and windows; ``sizes`` is a digest of the selected
        columns' bytes if windows are given in bytes.
    filter, row_changes
        A digest of the filter, and how many transforms change the number of rows.
    seed
        Seed of the shuffle; None: stored order.
    epoch, row, window, window_row
        The `Cursor`.
    shards, batch_size
        How the epoch was assigned; None before a batch size was known.
    corrupt
        The blocks skipped as corrupt, by number.
    """

    order: int
    fingerprint: str
    schema: str
    files: int
    rows: int
    block_bytes: int
    blocks_per_window: int | None
    bytes_per_window: int | None
    sizes: str
    filter: str
    row_changes: int
    seed: int | None
    epoch: int = 0
    row: int = 0
    window: int = 0
    window_row: int = 0
    shards: int | None = None
    batch_size: int | None = None
    corrupt: tuple[int, ...] = ()

    @property
    def cursor(self) -> Cursor:
        """How far the stream has been consumed."""
        assigned = None if self.shards is None or self.batch_size is None else (self.shards, self.batch_size)
        return Cursor(self.epoch, self.row, self.window, self.window_row, assigned, self.corrupt)

    def at(self, cursor: Cursor, *, shards: int | None, batch_size: int | None) -> State:
        """The state of the same stream at a cursor."""
        return replace(
            self,
            epoch=cursor.epoch,
            row=cursor.row,
            window=cursor.window,
            window_row=cursor.window_row,
            shards=shards,
            batch_size=batch_size,
            corrupt=cursor.corrupt,
        )

    def to_dict(self) -> dict[str, Any]:
        """The state as JSON values, under 1 KB.

        Every state has the same keys, because torch.distributed.checkpoint loads only keys that the
        object to load into has.
        """
        body = {"format": _FORMAT, "version": _FORMAT_VERSION, **vars(self), _CORRUPT: list(self.corrupt)}
        return {**body, "check": _digest(body)}


def describe_stream(job: Job) -> State:
    """The state at the start of a job's stream."""
    identity = job.source.identity()
    return State(
        order=ORDER_VERSION,
        fingerprint=identity.fingerprint,
        schema=identity.schema,
        files=identity.files,
        rows=identity.rows,
        block_bytes=identity.block_bytes,
        blocks_per_window=job.cut.blocks_per_window,
        bytes_per_window=job.cut.bytes_per_window,
        sizes=_digest_sizes(job),
        filter=identity.filter,
        row_changes=sum(not stage.preserves_rows for stage in job.before),
        seed=job.seed,
    )


def parse_state(state: object) -> State:
    """Parse a state, as returned by ``state_dict`` or as a checkpoint format restores it.

    Numbers may come back as NumPy or torch scalars, as tensors without dimensions or as whole
    floats, and lists as tuples. The checksum covers the values that they represent.

    Raises
    ------
    StateError
        If it is not a state, is corrupt, or has a version that this windrow cannot read.
    """
    if not isinstance(state, Mapping) or state.get("format") != _FORMAT:
        raise StateError(
            f"this is not a state of windrow: {_shorten(state)}. Pass what state_dict() returned, unchanged"
        )
    body = dict(state)
    version = body.pop("version", None)
    if as_integer(version) != _FORMAT_VERSION:
        raise StateError(
            f"the state has format version {version!r}, and this windrow reads version {_FORMAT_VERSION}: "
            "load it with the windrow that wrote it, or a newer one"
        )
    fields = {name: _read_field(body, name) for name in (*_TEXTS, *_COUNTS, *_MAYBE)}
    parsed = State(**fields, corrupt=_read_corrupt(body))
    known = parsed.to_dict()
    if unknown := sorted(str(key) for key in state if key not in known):
        raise _make_corrupt_error(f"it has entries that no state has: {', '.join(map(repr, unknown))}")
    if body.get("check") != known["check"]:
        raise _make_corrupt_error("its checksum does not match")
    return parsed


def resume(job: Job, state_dict: Mapping[str, Any], *, allow_appended: bool = False) -> tuple[Job, Cursor]:
    """The job that continues from a state, and its cursor.

    Raises
    ------
    StateError
        If the state is corrupt, or does not belong to this job's stream.
    """
    state = parse_state(state_dict)
    job = check_state(state, job, allow_appended=allow_appended)
    return job, check_cursor(state.cursor, Program(job, 1, False, (0,)))


def check_state(state: State, job: Job, *, allow_appended: bool = False) -> Job:
    """The job that continues from a state: the same, with the state's seed if its own was drawn at random.

    Raises
    ------
    StateError
        If the state has other data, windows, filter, order or seed; names what differs.
    """
    job = (
        job
        if state.seed == job.seed or not job.seed_drawn or state.seed is None
        else job.with_seed(state.seed)
    )
    here = describe_stream(job)
    if allow_appended:
        state = _allow_appended(state, here, job)
    differences = find_differences(state, here)
    if differences:
        raise StateError(f"the state is not of this stream: {'; '.join(differences)}")
    if state.corrupt:
        _check_corrupt(state.corrupt, job)
    return job


def find_differences(state: State, here: State) -> list[str]:
    """How the stream of one state differs from another's, as text."""
    return [*_data_differences(state, here), *_order_differences(state, here)]


def check_cursor(cursor: Cursor, program: Program) -> Cursor:
    """A state's cursor, checked against a program's stream.

    Raises
    ------
    StateError
        If it lies past the stream's end, or its window does not hold its row.
    """
    epochs = program.job.epochs
    if epochs is not None and cursor.epoch > epochs:
        raise StateError(
            f"the state is at epoch {cursor.epoch}, but the pipeline has {epochs}: use repeat(...) for more"
        )
    if cursor.window_row > cursor.row or cursor.window > program.plan(cursor.epoch).windows:
        raise _make_corrupt_error(
            f"window {cursor.window} does not hold row {cursor.row} of epoch {cursor.epoch}"
        )
    if not program.job.rows_known:
        return cursor
    found = program.locate(cursor.epoch, cursor.row)
    # where rows are counted as they are read, the end of a window is not yet the start of the next one
    before = program.locate(cursor.epoch, max(0, cursor.row - 1))
    if found.epoch == cursor.epoch and cursor not in (found, replace(before, row=cursor.row)):
        raise _make_corrupt_error(f"row {cursor.row} of epoch {cursor.epoch} lies in another window")
    return replace(found, assigned=cursor.assigned)


def make_seed_error(seed: int | None, others: int | None) -> StateError:
    """The error for a shard whose state has another seed than the one that other shards read by."""
    return StateError(
        f"the state has seed {seed}, but other shards of the same split() are being read with seed {others}: "
        "load it into all shards before any is read, or pass it to split(..., state_dict=...)"
    )


def _allow_appended(state: State, here: State, job: Job) -> State:
    """The state as if all present files had been there, if its files are the first of them."""
    if state.row:
        raise StateError(
            f"allow_appended=True admits data at an epoch's start, but the state is at row {state.row:,} of "
            f"epoch {state.epoch}: load it without this option, read that epoch to its end, and admit the data then"
        )
    if state.files > here.files:
        return state
    before = job.source.identity(state.files)
    if (before.fingerprint, before.schema) != (state.fingerprint, state.schema):
        return state
    data = {name: getattr(here, name) for name in ("fingerprint", "files", "rows", "sizes")}
    return replace(state, **data)


def _data_differences(state: State, here: State) -> list[str]:
    if state.fingerprint == here.fingerprint:
        return []
    differences = []
    if state.schema != here.schema:
        differences.append("the files have other columns or types than then")
    if state.files != here.files:
        differences.append(f"{state.files:,} files then, {here.files:,} now")
    if state.rows != here.rows:
        differences.append(f"{state.rows:,} rows then, {here.rows:,} now")
    if not differences:
        differences.append("the same number of files and rows with other names, sizes or content")
    more = here.files > state.files or here.rows > state.rows
    fix = "read the data as it was" + (
        ", or admit appended data with allow_appended=True at an epoch's start" if more else ""
    )
    return [
        f"the data differs ({', '.join(differences)}): {fix}; with a manifest saved then, "
        "read_parquet(..., manifest=...) continues, and names any file that has changed"
    ]


def _order_differences(state: State, here: State) -> list[str]:
    differences = []
    if state.order != here.order:
        differences.append(f"it has order version {state.order}, but this windrow uses {here.order}")
    if state.block_bytes != here.block_bytes:
        differences.append(
            f"target_block_bytes was {format_bytes(state.block_bytes)}, now {format_bytes(here.block_bytes)}"
        )
    if _describe_window(state) != _describe_window(here):
        differences.append(f"the pipeline had {_describe_window(state)}, now {_describe_window(here)}")
    elif state.sizes != here.sizes and state.fingerprint == here.fingerprint:
        differences.append(
            f"other columns are selected, and {_describe_window(here)} depends on their bytes: select the same columns"
        )
    if state.filter != here.filter:
        differences.append(
            "the filter differs" if state.filter and here.filter else _describe_change(state.filter, "filter")
        )
    if state.row_changes != here.row_changes:
        differences.append(
            f"{state.row_changes} transforms with preserves_rows=False stood before the shuffle, now "
            f"{here.row_changes}"
        )
    if state.seed != here.seed:
        differences.append(
            _describe_change(state.seed is not None, "shuffle")
            if None in (state.seed, here.seed)
            else f"the seed was {state.seed}, now {here.seed}"
        )
    return differences


def _describe_change(before: object, noun: str) -> str:
    return (
        f"there was a {noun}, and now there is none"
        if before
        else f"there was no {noun}, and now there is one"
    )


def _describe_window(state: State) -> str:
    if state.blocks_per_window is not None:
        return f"window(blocks_per_window={state.blocks_per_window})"
    if state.bytes_per_window is not None:
        return f"window(bytes_per_window={state.bytes_per_window})"
    return "no window()"


def _digest_sizes(job: Job) -> str:
    """A digest of the sizes that windows are cut by; empty if column sizes do not matter."""
    if job.cut.bytes_per_window is None:
        return ""
    sizes = job.source.blocks.decoded_bytes
    return hashlib.sha256(sizes.astype("<i8").tobytes()).hexdigest()[:_DIGEST_DIGITS]


def _read_field(body: Mapping[str, Any], name: str) -> Any:
    if name not in body:
        raise _make_corrupt_error(f"{name!r} is missing")
    value = body[name]
    if name in _TEXTS:
        if not isinstance(value, str):
            raise _make_corrupt_error(f"{name}={_shorten(value)} is not a string")
        return value
    if value is None and name in _MAYBE:
        return None
    number = as_integer(value)
    if number is None or (number < 0 and name != "seed"):
        raise _make_corrupt_error(f"{name}={_shorten(value)} is not a count")
    return number


def _read_corrupt(body: Mapping[str, Any]) -> tuple[int, ...]:
    given = body.get(_CORRUPT, [])
    blocks: list[int | None] = [None]
    if not isinstance(given, (str, bytes, Mapping)):
        with suppress(TypeError):  # not iterable
            blocks = [as_integer(block) for block in given]
    found = tuple(block for block in blocks if block is not None and block >= 0)
    if len(found) != len(blocks):
        raise _make_corrupt_error(f"{_CORRUPT}={_shorten(given)} is not a list of block numbers")
    return found


def _check_corrupt(blocks: tuple[int, ...], job: Job) -> None:
    """Check that a job can skip the blocks that a state has skipped."""
    if max(blocks) >= len(job.source.blocks.rows):
        raise _make_corrupt_error(f"there is no block {max(blocks)}")
    if not job.skips_corrupt:
        names = "; ".join(address.origin for address in job.source.addresses(blocks))
        raise StateError(
            f"the state has skipped corrupt blocks ({names}), and without them rows have other positions: resume "
            "with options(on_error='skip')"
        )


def _make_corrupt_error(why: str) -> StateError:
    return StateError(f"the state is corrupt: {why}. Load another copy of it")


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _digest(body: Mapping[str, Any]) -> str:
    counted = {name: value for name, value in body.items() if name != _CORRUPT or value}
    text = json.dumps(counted, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_DIGITS]
