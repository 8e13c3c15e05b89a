"""The state of a stream: what was consumed, of which data and in which order, in JSON values.

A state names what it belongs to, so that it is refused where the same place would hold
other rows. It is data and nothing else: to load one runs no code.
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
        The version of the algorithm behind the order.
    fingerprint, schema, files, rows
        The data: a digest of it, one of its columns, and how much it is as stored.
    block_bytes, blocks_per_window, bytes_per_window, sizes
        How it is cut into blocks and windows; ``sizes`` is a digest of the selected
        columns' bytes where windows are given in bytes.
    filter, row_changes
        A digest of the filter, and how many transforms change the number of rows.
    seed
        The shuffle's; None: the stored order.
    epoch, row, window, window_row
        The `Cursor`.
    shards, batch_size
        How the epoch was dealt; None before a batch size was known.
    corrupt
        The blocks that have been left out as corrupt, by number.
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
        """The state of the same stream at a place."""
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
        """The state in JSON values, under 1 KB.

        Every state has the same keys: torch.distributed.checkpoint loads only the keys that the object to
        load into has.
        """
        body = {"format": _FORMAT, "version": _FORMAT_VERSION, **vars(self), _CORRUPT: list(self.corrupt)}
        return {**body, "check": _digest(body)}


def describe_stream(job: Job) -> State:
    """The state at the begin of a job's stream."""
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
    """Read a state, as ``state_dict`` returned it or as a checkpoint format gives it back.

    Numbers may come back as NumPy's or torch's, as tensors without dimensions or as whole floats, and lists
    as tuples. The checksum covers the values that they stand for.

    Raises
    ------
    StateError
        If it is not a state, is corrupt, or is of a version that this windrow does not know.
    """
    if not isinstance(state, Mapping) or state.get("format") != _FORMAT:
        raise StateError(
            f"this is not a state of windrow: {_shorten(state)}. Give what state_dict() returned, unchanged"
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


def resume(job: Job, state_dict: Mapping[str, Any], *, admit_appended: bool = False) -> tuple[Job, Cursor]:
    """The job that goes on from a state, and where.

    Raises
    ------
    StateError
        If the state is corrupt, or is not of this job's stream.
    """
    state = parse_state(state_dict)
    job = check_state(state, job, admit_appended=admit_appended)
    return job, check_cursor(state.cursor, Program(job, 1, False, (0,)))


def check_state(state: State, job: Job, *, admit_appended: bool = False) -> Job:
    """The job that goes on from a state: the same one, with the state's seed where its own was drawn.

    Raises
    ------
    StateError
        If the state is of other data, cut, filter, order or seed; it says what differs.
    """
    job = (
        job
        if state.seed == job.seed or not job.seed_drawn or state.seed is None
        else job.with_seed(state.seed)
    )
    here = describe_stream(job)
    if admit_appended:
        state = _admit_appended(state, here, job)
    differences = find_differences(state, here)
    if differences:
        raise StateError(f"the state is not of this stream: {'; '.join(differences)}")
    if state.corrupt:
        _check_corrupt(state.corrupt, job)
    return job


def find_differences(state: State, here: State) -> list[str]:
    """What makes one state's stream another than that of a second, in words."""
    return [*_data_differences(state, here), *_order_differences(state, here)]


def check_cursor(cursor: Cursor, program: Program) -> Cursor:
    """A state's cursor, if a program's stream has such a place.

    Raises
    ------
    StateError
        If it lies behind the stream's end, or its window does not hold its row.
    """
    epochs = program.job.epochs
    if epochs is not None and cursor.epoch > epochs:
        raise StateError(
            f"the state is at epoch {cursor.epoch}, and the chain has {epochs}: use repeat(...) for more"
        )
    if cursor.window_row > cursor.row or cursor.window > program.plan(cursor.epoch).windows:
        raise _make_corrupt_error(
            f"window {cursor.window} does not hold row {cursor.row} of epoch {cursor.epoch}"
        )
    if not program.job.rows_known:
        return cursor
    found = program.locate(cursor.epoch, cursor.row)
    # where rows are counted as they are read, a window's end is not yet the begin of the next
    before = program.locate(cursor.epoch, max(0, cursor.row - 1))
    if found.epoch == cursor.epoch and cursor not in (found, replace(before, row=cursor.row)):
        raise _make_corrupt_error(f"row {cursor.row} of epoch {cursor.epoch} lies in another window")
    return replace(found, assigned=cursor.assigned)


def make_seed_error(seed: int | None, others: int | None) -> StateError:
    """The error for a shard that a state brought another seed than other shards read by."""
    return StateError(
        f"the state brings seed {seed}, and other shards of the same split() are being read by seed {others}: "
        "load it into all shards before any is read, or give it to split(..., state_dict=...)"
    )


def _admit_appended(state: State, here: State, job: Job) -> State:
    """The state as if the data had had all its present files, where it had the first of them."""
    if state.row:
        raise StateError(
            f"admit_appended=True admits data at an epoch's start, and the state is at row {state.row:,} of "
            f"epoch {state.epoch}: load it without, read that epoch to its end, and admit the data then"
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
    found = []
    if state.schema != here.schema:
        found.append("the files have other columns or types than then")
    if state.files != here.files:
        found.append(f"{state.files:,} files then, {here.files:,} now")
    if state.rows != here.rows:
        found.append(f"{state.rows:,} rows then, {here.rows:,} now")
    if not found:
        found.append("the same number of files and rows with other names, sizes or content")
    more = here.files > state.files or here.rows > state.rows
    fix = "read the data as it was" + (
        ", or admit what was appended with admit_appended=True at an epoch's start" if more else ""
    )
    return [
        f"the data differs ({', '.join(found)}): {fix}; with a manifest saved then, "
        "read_parquet(..., manifest=...) reads on and names a file that has changed"
    ]


def _order_differences(state: State, here: State) -> list[str]:
    found = []
    if state.order != here.order:
        found.append(f"it has order version {state.order}, and this windrow makes {here.order}")
    if state.block_bytes != here.block_bytes:
        found.append(
            f"target_block_bytes was {format_bytes(state.block_bytes)}, now {format_bytes(here.block_bytes)}"
        )
    if _describe_window(state) != _describe_window(here):
        found.append(f"the chain had {_describe_window(state)}, now {_describe_window(here)}")
    elif state.sizes != here.sizes and state.fingerprint == here.fingerprint:
        found.append(
            f"other columns are selected, and {_describe_window(here)} counts the bytes of those: select the same"
        )
    if state.filter != here.filter:
        found.append(
            "the filter is another one"
            if state.filter and here.filter
            else _describe_change(state.filter, "filter")
        )
    if state.row_changes != here.row_changes:
        found.append(
            f"{state.row_changes} transforms with preserves_rows=False stood before the shuffle, now "
            f"{here.row_changes}"
        )
    if state.seed != here.seed:
        found.append(
            _describe_change(state.seed is not None, "shuffle")
            if None in (state.seed, here.seed)
            else f"the seed was {state.seed}, now {here.seed}"
        )
    return found


def _describe_change(then: object, what: str) -> str:
    return (
        f"there was a {what}, and now there is none" if then else f"there was no {what}, and now there is one"
    )


def _describe_window(state: State) -> str:
    if state.blocks_per_window is not None:
        return f"window(blocks_per_window={state.blocks_per_window})"
    if state.bytes_per_window is not None:
        return f"window(bytes_per_window={state.bytes_per_window})"
    return "no window()"


def _digest_sizes(job: Job) -> str:
    """A digest of what windows are cut by; empty where no column matters."""
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
            raise _make_corrupt_error(f"{name}={_shorten(value)} is not a text")
        return value
    if value is None and name in _MAYBE:
        return None
    number = as_integer(value)
    if number is None or (number < 0 and name != "seed"):
        raise _make_corrupt_error(f"{name}={_shorten(value)} is not a count")
    return number


def _read_corrupt(body: Mapping[str, Any]) -> tuple[int, ...]:
    given = body.get(_CORRUPT, [])  # missing from states of earlier versions where it would be empty
    blocks: list[int | None] = [None]
    if not isinstance(given, (str, bytes, Mapping)):
        with suppress(TypeError):  # cannot be iterated
            blocks = [as_integer(block) for block in given]
    found = tuple(block for block in blocks if block is not None and block >= 0)
    if len(found) != len(blocks):
        raise _make_corrupt_error(f"{_CORRUPT}={_shorten(given)} is not a list of block numbers")
    return found


def _check_corrupt(blocks: tuple[int, ...], job: Job) -> None:
    """Make sure that a job can leave out what a state has left out."""
    if max(blocks) >= len(job.source.blocks.rows):
        raise _make_corrupt_error(f"there is no block {max(blocks)}")
    if not job.skips_corrupt:
        names = "; ".join(address.origin for address in job.source.addresses(blocks))
        raise StateError(
            f"the state has left out corrupt blocks ({names}), and without them rows have other places: go on "
            "with options(on_error='skip')"
        )


def _make_corrupt_error(why: str) -> StateError:
    return StateError(f"the state is corrupt: {why}. Load another copy of it")


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _digest(body: Mapping[str, Any]) -> str:
    # an empty list of corrupt blocks is not counted: earlier versions left it out
    counted = {name: value for name, value in body.items() if name != _CORRUPT or value}
    text = json.dumps(counted, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_DIGITS]
