"""What differs between the streams of two states, as a short table."""

from __future__ import annotations

from collections.abc import Iterator

from windrow.core.byte_sizes import format_bytes
from windrow.pipeline.checkpoint.state import State

__all__ = ["describe_differences"]

_SHOWN_DIGITS = 8


def describe_differences(then: State, now: State, labels: tuple[str, str] = ("then", "now")) -> str:
    """A table of what differs, and how to fix it; empty if the streams are the same."""
    rows = [*_compare_data(then, now), *_compare_order(then, now)]
    if not rows:
        return ""
    table = [("", *labels), *rows]
    names, values = (max(len(row[column]) for row in table) for column in (0, 1))
    lines = [f"\n  {name:{names}}  {before:{values}}  {after}" for name, before, after in table]
    return "".join([*lines, *(f"\n{fix}" for fix in _suggest_fixes(then, now))])


def _compare_data(then: State, now: State) -> Iterator[tuple[str, str, str]]:
    if then.fingerprint == now.fingerprint:
        return
    if then.schema != now.schema:
        yield "columns and types", _shorten(then.schema), _shorten(now.schema)
    if then.files != now.files:
        yield "files", f"{then.files:,}", f"{now.files:,}"
    if then.rows != now.rows:
        yield "rows", f"{then.rows:,}", f"{now.rows:,}"
    if (then.schema, then.files, then.rows) == (now.schema, now.files, now.rows):
        yield "names, sizes, content", _shorten(then.fingerprint), _shorten(now.fingerprint)


def _compare_order(then: State, now: State) -> Iterator[tuple[str, str, str]]:
    if then.order != now.order:
        yield "version of the order", str(then.order), str(now.order)
    if then.block_bytes != now.block_bytes:
        yield "target_block_bytes", format_bytes(then.block_bytes), format_bytes(now.block_bytes)
    if _describe_window(then) != _describe_window(now):
        yield "window", _describe_window(then), _describe_window(now)
    elif _selects_other_columns(then, now):
        yield "selected columns", _shorten(then.sizes), _shorten(now.sizes)
    if then.filter != now.filter:
        yield "filter", _shorten(then.filter), _shorten(now.filter)
    if then.row_changes != now.row_changes:
        yield "preserves_rows=False", _count_maps(then.row_changes), _count_maps(now.row_changes)
    if then.packing != now.packing:
        yield "pack", then.packing or "none", now.packing or "none"
    if then.shuffled != now.shuffled and (then.seed is None) == (now.seed is None):
        yield "order of", then.shuffled or "none", now.shuffled or "none"
    if then.seed != now.seed:
        yield "shuffle", _describe_seed(then.seed), _describe_seed(now.seed)


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


def _count_maps(count: int) -> str:
    return f"{count} transform{'' if count == 1 else 's'}"


def _shorten(digest: str) -> str:
    return digest[:_SHOWN_DIGITS] or "none"
