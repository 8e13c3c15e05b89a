"""The state of a stream, as JSON values: what was consumed, of which data, in which order; and how two states differ.

A state names the data and order that it belongs to, so that loading it elsewhere, where the same
point would hold other rows, is an error. It is pure data: loading one runs no code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from windrow.core.byte_sizes import format_bytes
from windrow.core.errors import StateError
from windrow.core.integers import as_integer
from windrow.core.terminal_text import align_columns, format_count
from windrow.pipeline.checkpoint.mixed_state import MixedState, describe_mixture, find_changed, parse_mixed
from windrow.pipeline.plan.cursor import Cursor
from windrow.pipeline.plan.job import Job
from windrow.pipeline.plan.mixture import Mixture
from windrow.shuffle.order.keys import order_version
from windrow.shuffle.order.length_groups import LengthGroups

_FORMAT = "windrow state"
_FORMAT_VERSION = 1
_DIGEST_DIGITS = 16

_TEXTS = ("fingerprint", "schema", "sizes", "filter", "packing", "shuffled")
_CORRUPT = "corrupt"
_GROUPS = "groups"
_CHOICE = "row_choice"
_MIXTURE = "mixture"
_COUNTS = ("order", "files", "rows", "block_bytes", "row_changes", "epoch", "row", "window", "window_row")
_MAYBE = ("blocks_per_window", "bytes_per_window", "seed", "shards", "batch_size")
_SHOWN_DIGITS = 8


@dataclass(frozen=True)
class State:
    """A parsed state: version of the order, data, windows, transforms, seed, and the cursor."""

    order: int
    # of a mixture, what is empty up to `packing` belongs to the sources, each of which has a digest
    fingerprint: str = ""  # a digest of the data
    schema: str = ""  # a digest of its columns
    files: int = 0
    rows: int = 0
    block_bytes: int = 0
    blocks_per_window: int | None = None  # 0: the windows that the source states
    bytes_per_window: int | None = None
    sizes: str = ""  # a digest of the selected columns' bytes if windows are given in bytes
    filter: str = ""  # a digest
    row_changes: int = 0  # how many transforms change the number of rows
    packing: str = ""  # the sequence length and a digest of pack(); empty without
    seed: int | None = None  # None: stored order
    shuffled: str = ""  # "rows" or "blocks", and the sort of each window; empty for stored order
    epoch: int = 0
    row: int = 0
    window: int = 0
    window_row: int = 0
    shards: int | None = None
    batch_size: int | None = None  # None before it was known
    corrupt: tuple[int, ...] = ()
    groups: str = ""  # in which order the epoch was read up to here, if by length
    # a digest of how the transforms choose rows that say so; empty if none does
    row_choice: str = ""
    mixture: MixedState | None = None  # of a mixture, whose data and order are those of its sources

    @property
    def cursor(self) -> Cursor:
        """How far the stream has been consumed."""
        assigned = None if self.shards is None or self.batch_size is None else (self.shards, self.batch_size)
        groups = LengthGroups.parse(self.groups)
        return Cursor(
            self.epoch, self.row, self.window, self.window_row, assigned, self.corrupt, groups=groups
        )

    def at(
        self,
        cursor: Cursor,
        *,
        shards: int | None,
        batch_size: int | None,
        mixture: MixedState | None = None,
    ) -> State:
        """The state of the same stream at a cursor, of a mixture with what it says of that."""
        return replace(
            self,
            epoch=cursor.epoch,
            row=cursor.row,
            window=cursor.window,
            window_row=cursor.window_row,
            shards=shards,
            batch_size=batch_size,
            corrupt=cursor.corrupt,
            groups=str(cursor.groups) if cursor.row and cursor.groups is not None else "",
            mixture=mixture,
        )

    def to_dict(self) -> dict[str, Any]:
        """The state as JSON values, under 1 KB; of a mixture, about 45 bytes more for each source.

        Every state has the same keys, because torch.distributed.checkpoint loads only keys that the
        object to load into has.
        """
        body = {"format": _FORMAT, "version": _FORMAT_VERSION, **vars(self), _CORRUPT: list(self.corrupt)}
        del body[_MIXTURE]
        if self.mixture is not None:
            body[_MIXTURE] = self.mixture.to_dict()
        return {**body, "check": _digest(body)}


def describe_stream(job: Job) -> State:
    """The state at the start of a job's stream."""
    if job.mixture is not None:
        return _describe_mixture(job, job.mixture)
    identity = job.source.identity()
    return State(
        order=order_version(cuts_row_groups=identity.cuts_row_groups),
        fingerprint=identity.fingerprint,
        schema=identity.schema,
        files=identity.files,
        rows=identity.rows,
        block_bytes=identity.block_bytes,
        blocks_per_window=0 if job.cut.of_source else job.cut.blocks_per_window,
        bytes_per_window=job.cut.bytes_per_window,
        sizes=_digest_sizes(job),
        filter=identity.filter,
        row_changes=sum(not stage.preserves_rows for stage in job.before),
        row_choice=_digest_choice(job),
        packing="" if job.packing is None else job.packing.identity,
        seed=job.seed,
        shuffled=_describe_order(job),
    )


def _describe_mixture(job: Job, mixture: Mixture) -> State:
    return State(
        order=order_version(cuts_row_groups=False),
        schema=job.source.identity().schema,
        # columns and end tokens belong to the sources, unless their documents are joined
        packing=_describe_packing(job, mixture),
        seed=mixture.seed,
        shuffled="mixture",
        mixture=describe_mixture(mixture),
    )


def _describe_packing(job: Job, mixture: Mixture) -> str:
    if mixture.joined is not None and job.packing is not None:
        return f"{job.packing.identity} of all sources"
    return "" if mixture.seq_len is None else str(mixture.seq_len)


def _describe_order(job: Job) -> str:
    shuffled = "" if job.seed is None else "blocks" if job.shuffles_blocks else "rows"
    return ", ".join(filter(None, [shuffled, "" if job.sort is None else str(job.sort)]))


def parse_state(state: object) -> State:
    """Parse a state, as returned by ``state_dict`` or as a checkpoint format restores it.

    Numbers may come back as NumPy or torch scalars, as tensors without dimensions or as whole
    floats, and lists as tuples. The checksum covers the values that they represent.
    """
    if not isinstance(state, Mapping) or state.get("format") != _FORMAT:
        within = state.items() if isinstance(state, Mapping) else ()
        held = [key for key, value in within if isinstance(value, Mapping) and value.get("format") == _FORMAT]
        advice = (
            f"Its {held[0]!r} is one: pass that" if held else "Pass what state_dict() returned, unchanged"
        )
        raise StateError(f"this is not a state of windrow: {_shorten(state)}. {advice}")
    body = dict(state)
    version = body.pop("version", None)
    if as_integer(version) != _FORMAT_VERSION:
        raise StateError(
            f"the state has format version {version!r}, and this windrow reads version {_FORMAT_VERSION}: "
            "load it with the windrow that wrote it, or a newer one"
        )
    fields = {name: _read_field(body, name) for name in (*_TEXTS, *_COUNTS, *_MAYBE)}
    mixture = None
    if _MIXTURE in body:
        mixture = parse_mixed(body[_MIXTURE])
        if mixture is None:
            raise make_corrupt_error(f"{_MIXTURE}={_shorten(body[_MIXTURE])} is not what states hold")
    groups = body.get(_GROUPS, "")
    if not isinstance(groups, str) or (groups and LengthGroups.parse(groups) is None):
        raise make_corrupt_error(f"{_GROUPS}={_shorten(groups)} is not what states hold")
    choice = body.get(_CHOICE, "")
    if not isinstance(choice, str):
        raise make_corrupt_error(f"{_CHOICE}={_shorten(choice)} is not what states hold")
    parsed = State(**fields, corrupt=_read_corrupt(body), groups=groups, row_choice=choice, mixture=mixture)
    known = parsed.to_dict()
    if unknown := sorted(str(key) for key in state if key not in known):
        raise make_corrupt_error(f"it has entries that no state has: {', '.join(map(repr, unknown))}")
    if body.get("check") != known["check"]:
        raise make_corrupt_error("its checksum does not match")
    return parsed


def _digest_choice(job: Job) -> str:
    """A digest of how transforms choose rows; a function of the user does not tell."""
    told = [str(getattr(stage.fn, "row_choice", "")) for stage in job.before if not stage.preserves_rows]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:_DIGEST_DIGITS] if any(told) else ""


def _digest_sizes(job: Job) -> str:
    """A digest of the sizes that windows are cut by; empty if column sizes do not matter."""
    if job.cut.bytes_per_window is None:
        return ""
    sizes = job.source.blocks.decoded_bytes
    return hashlib.sha256(sizes.astype("<i8").tobytes()).hexdigest()[:_DIGEST_DIGITS]


def _read_field(body: Mapping[str, Any], name: str) -> Any:
    if name not in body:
        raise make_corrupt_error(f"{name!r} is missing")
    value = body[name]
    if name in _TEXTS:
        if not isinstance(value, str):
            raise make_corrupt_error(f"{name}={_shorten(value)} is not a string")
        return value
    if value is None and name in _MAYBE:
        return None
    number = as_integer(value)
    if number is None or (number < 0 and name != "seed"):
        raise make_corrupt_error(f"{name}={_shorten(value)} is not a count")
    return number


def _read_corrupt(body: Mapping[str, Any]) -> tuple[int, ...]:
    given = body.get(_CORRUPT, [])
    blocks: list[int | None] = [None]
    if not isinstance(given, (str, bytes, Mapping)):
        with suppress(TypeError):  # not iterable
            blocks = [as_integer(block) for block in given]
    found = tuple(block for block in blocks if block is not None and block >= 0)
    if len(found) != len(blocks):
        raise make_corrupt_error(f"{_CORRUPT}={_shorten(given)} is not a list of block numbers")
    return found


def make_corrupt_error(why: str) -> StateError:
    """The error for a state whose values contradict each other."""
    return StateError(f"the state is corrupt: {why}. Load another copy of it")


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _digest(body: Mapping[str, Any]) -> str:
    # states that were written before these were known have none of them
    counted = {
        name: value for name, value in body.items() if name not in (_CORRUPT, _GROUPS, _CHOICE) or value
    }
    text = json.dumps(counted, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_DIGITS]


def describe_differences(then: State, now: State, labels: tuple[str, str] = ("then", "now")) -> str:
    """A table of what differs, and how to fix it; empty if the streams are the same."""
    of_mixtures = (then.mixture is not None, now.mixture is not None)
    if any(of_mixtures) and not all(of_mixtures):
        # their data and windows do not compare, and the same data does not help
        before, after = ("mixture" if is_mixture else "no mixture" for is_mixture in of_mixtures)
        return _format_differences([("", *labels), ("pipeline", before, after)])
    rows = [*_compare_data(then, now), *_compare_order(then, now)]
    if then.mixture is not None and now.mixture is not None:
        rows += find_changed(then.mixture, now.mixture)
    if not rows:
        return ""
    table = _format_differences([("", *labels), *rows])
    return "".join([table, *(f"\n{fix}" for fix in _suggest_fixes(then, now))])


def _format_differences(table: Sequence[tuple[str, str, str]]) -> str:
    return "".join(f"\n  {line}" for line in align_columns(table))


def _compare_data(then: State, now: State) -> Iterator[tuple[str, str, str]]:
    if then.fingerprint == now.fingerprint:
        return
    if then.schema != now.schema:
        yield "columns and types", _shorten_digest(then.schema), _shorten_digest(now.schema)
    if then.files != now.files:
        yield "files", f"{then.files:,}", f"{now.files:,}"
    if then.rows != now.rows:
        yield "rows", f"{then.rows:,}", f"{now.rows:,}"
    if (then.schema, then.files, then.rows) == (now.schema, now.files, now.rows):
        yield "names, sizes, content", _shorten_digest(then.fingerprint), _shorten_digest(now.fingerprint)


def _compare_order(then: State, now: State) -> Iterator[tuple[str, str, str]]:
    if then.order != now.order:
        yield "version of the order", str(then.order), str(now.order)
    if then.block_bytes != now.block_bytes:
        yield "target_block_bytes", format_bytes(then.block_bytes), format_bytes(now.block_bytes)
    if _describe_window(then) != _describe_window(now):
        yield "window", _describe_window(then), _describe_window(now)
    elif _selects_other_columns(then, now):
        yield "selected columns", _shorten_digest(then.sizes), _shorten_digest(now.sizes)
    if then.filter != now.filter:
        yield "filter", _shorten_digest(then.filter), _shorten_digest(now.filter)
    if then.row_changes != now.row_changes:
        before, after = (format_count(state.row_changes, "transform") for state in (then, now))
        yield "change of rows", before, after
    elif then.row_choice != now.row_choice and then.row_choice and now.row_choice:
        yield "choice of rows", _shorten_digest(then.row_choice), _shorten_digest(now.row_choice)
    if then.packing != now.packing:
        yield from _compare_packing(then.packing, now.packing)
    if then.shuffled != now.shuffled and (then.seed is None) == (now.seed is None):
        yield "order of", then.shuffled or "none", now.shuffled or "none"
    if then.seed != now.seed:
        yield "shuffle", _describe_seed(then.seed), _describe_seed(now.seed)


def _compare_packing(then: str, now: str) -> Iterator[tuple[str, str, str]]:
    before, after = (text.split(" ", 2) if text else [] for text in (then, now))
    described = [
        f"sequences of {' '.join([text[0], *text[2:]])}" if text else "none" for text in (before, after)
    ]
    if described[0] != described[1]:
        yield "pack", described[0], described[1]
    else:
        yield "columns, eos, options of pack", " ".join(before[1:2]), " ".join(after[1:2])


def _suggest_fixes(then: State, now: State) -> Iterator[str]:
    if then.fingerprint != now.fingerprint:
        has_more = now.files > then.files or now.rows > then.rows
        appended = ", or admit appended data with allow_appended=True at an epoch's start" if has_more else ""
        yield (
            f"Read the data as it was{appended}. With a manifest saved then, read_parquet(..., manifest=...) "
            "continues, and names any file that has changed."
        )
    elif _selects_other_columns(then, now):
        yield f"{_describe_window(now)} depends on the columns' bytes: select the same columns."


def _selects_other_columns(then: State, now: State) -> bool:
    return then.sizes != now.sizes and then.fingerprint == now.fingerprint


def _describe_window(state: State) -> str:
    if state.blocks_per_window == 0:
        return "the dataset's own"
    if state.blocks_per_window is not None:
        return f"window(blocks_per_window={state.blocks_per_window})"
    if state.bytes_per_window is not None:
        return f"window(bytes_per_window={state.bytes_per_window})"
    return "none"


def _describe_seed(seed: int | None) -> str:
    return "none" if seed is None else f"seed {seed}"


def _shorten_digest(digest: str) -> str:
    return digest[:_SHOWN_DIGITS] or "none"
