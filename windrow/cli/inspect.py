"""``windrow inspect``: schema, files, row groups, sizes and codecs of data, and what they imply for windows."""

from __future__ import annotations

import argparse
from typing import Any

from windrow.cli.command_line import (
    add_source_arguments,
    format_table,
    open_dataset,
    print_json,
    print_labelled,
)
from windrow.cli.file_facts import (
    FEW_BLOCKS,
    FooterFacts,
    decoded_bytes,
    describe_files,
    read_facts,
    spread,
    warn_of_files,
)
from windrow.core.byte_sizes import format_bytes
from windrow.core.source import Source, schema_changes
from windrow.core.terminal_text import format_count
from windrow.io.catalog.file_source import FileSource

_LARGE_BLOCK_BYTES = 256 * 2**20
_SHOWN_ENCODINGS = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this subcommand."""
    add_source_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Inspect the data."""
    source = open_dataset(arguments)._plan.source
    footers = (
        read_facts(source) if isinstance(source, FileSource) and source.format.name == "Parquet" else None
    )
    found = _describe(source, footers)
    if arguments.json:
        print_json(found)
    else:
        _print(source, found)
    return 0


def _describe(source: Source, footers: FooterFacts | None) -> dict[str, Any]:
    blocks = source.blocks
    found: dict[str, Any] = {
        "source": repr(source),
        "rows": int(blocks.rows.sum()),
        "rows_known": blocks.rows_known,
        "blocks": len(blocks.rows),
        "block_bytes": spread(blocks.memory_bytes),
        "decoded_bytes": int(blocks.memory_bytes.sum()),
        "decoded_bytes_exact": blocks.bytes_exact,
        "schema": {field.name: str(field.type) for field in source.schema},
        "schema_changes": list(schema_changes(source)),
    }
    if isinstance(source, FileSource):
        found |= describe_files(source)
    if footers is not None and isinstance(source, FileSource):
        found |= {
            "inspected_files": footers.files,
            "schemas": footers.schemas,
            "file_of_another_schema": footers.other_schema,
            "writers": list(footers.writers),
            "codecs": footers.codecs,
            "columns": [
                {**vars(column), "decoded_bytes": decoded_bytes(source, column.name),
                 "nulls": source.manifest.null_counts.get(column.name)}
                for column in footers.columns.values()
            ],
        }  # fmt: skip
    found["warnings"] = find_warnings(found)
    return found


def find_warnings(found: dict[str, Any]) -> list[str]:
    """What about the data limits windows, reads or statistics, and how to fix it; one line each."""
    lines = []
    blocks, whole = found["blocks"], found["decoded_bytes"]
    if not found["rows"]:
        return ["there are no rows"]
    largest = found["block_bytes"]["most"]
    if blocks < FEW_BLOCKS:
        lines.append(
            f"few blocks: {format_count(blocks, 'block')} cannot be cut into windows that mix. Use one window, or "
            + (
                "smaller blocks (--target-block-bytes), down to a row group"
                if found.get("row_groups", 0) > blocks
                else "write the data again with more row groups (write_parquet), or in a random order (windrow premix)"
            )
        )
    elif blocks * largest > 2 * whole and largest > _LARGE_BLOCK_BYTES:
        lines.append(
            f"uneven blocks: the largest has {format_bytes(largest)} decoded, the mean {format_bytes(whole / blocks)}. "
            "Memory is planned for the window that holds the largest"
        )
    if not found["rows_known"]:
        lines.append(
            "row counts are not stored: the first epoch counts rows as it reads them, and the number of steps is not "
            "known before. Files of Parquet state them"
        )
    if "row_groups" in found:
        lines += warn_of_files(found)
    if "columns" in found:
        lines += _warn_of_columns(found)
    return lines


def _warn_of_columns(found: dict[str, Any]) -> list[str]:
    lines = []
    without = [each["name"] for each in found["columns"] if not each["chunks_with_statistics"]]
    if without:
        lines.append(
            f"no statistics: {_list(without)} without minimum and maximum. Filters on them skip nothing, and integers "
            "move in their full width instead of packed"
        )
    if found["schemas"] > 1:
        lines.append(
            f"mixed schemas: {found['schemas']} in the inspected files, such as {found['file_of_another_schema']}. "
            "Values are cast to the common schema; write the files again with one"
        )
    if len(found["codecs"]) > 1:
        lines.append(
            f"mixed codecs: {', '.join(sorted(found['codecs']))}. The speed of reading varies from block to block"
        )
    return lines


def _print(source: Source, found: dict[str, Any]) -> None:
    exact = "" if found["decoded_bytes_exact"] else "about "
    rows = f"{found['rows']:,} rows" if found["rows_known"] else "rows unknown"
    if "files" not in found:
        print_labelled("source", f"{source!r}")
        print_labelled("rows", f"{rows}; {exact}{format_bytes(found['decoded_bytes'])} decoded")
    else:
        print_labelled(
            "files",
            f"{format_count(found['files'], 'file')} of {found['format']} under {source_url(source)}; {rows}",
        )
        stored, decoded = found["stored_bytes"], found["decoded_bytes"]
        ratio = f", {decoded / stored:.1f} times as much" if stored else ""
        print_labelled(
            "bytes", f"{format_bytes(stored)} stored, {exact}{format_bytes(decoded)} decoded{ratio}"
        )
        print_labelled("groups", _describe_groups(found))
    print_labelled("blocks", _describe_blocks(found))
    if "writers" in found:
        some = found["inspected_files"]
        which = "" if some == found["files"] else f" (of {some:,} files, evenly spread)"
        print_labelled("codecs", ", ".join(sorted(found["codecs"])) + which)
        print_labelled("writer", ", ".join(found["writers"]) or "not stated")
    for change in found["schema_changes"]:
        print_labelled("schema", change)
    print()
    print(_format_columns(found))
    if found["warnings"]:
        print()
    for warning in found["warnings"]:
        print_labelled("warning", warning)


def source_url(source: Source) -> str:
    """The folder of a source's files, without credentials."""
    return source.files.name("").rstrip("/") if isinstance(source, FileSource) else repr(source)


def _describe_groups(found: dict[str, Any]) -> str:
    rows, encoded = found["row_group_rows"], found["row_group_encoded_bytes"]
    return (
        f"{format_count(found['row_groups'], 'row group')} of {_span(*map('{:,}'.format, _ends(rows)))} rows, "
        f"{_span(*map(format_bytes, _ends(encoded)))} encoded"
    )


def _describe_blocks(found: dict[str, Any]) -> str:
    sizes = found["block_bytes"]
    text = f"{format_count(found['blocks'], 'block')} of {_span(*map(format_bytes, _ends(sizes)))} decoded"
    if found["blocks"] >= FEW_BLOCKS:
        text += f"; a window should hold {FEW_BLOCKS} or more: {format_bytes(FEW_BLOCKS * sizes['mean'])}"
    return text


def _ends(spread: dict[str, int]) -> tuple[int, int]:
    return spread["least"], spread["most"]


def _span(least: str, most: str) -> str:
    return least if least == most else f"{least} to {most}"


def _format_columns(found: dict[str, Any]) -> str:
    if "columns" not in found:
        return format_table(("column", "type"), list(found["schema"].items()))
    header = ("column", "type", "stored", "decoded", "codec", "encodings", "nulls", "statistics")
    rows = [_format_column(each) for each in found["columns"]]
    inside = {each["name"] for each in found["columns"]}
    rows += [(name, kind, *[""] * 6) for name, kind in found["schema"].items() if name not in inside]
    return format_table(header, rows, right=(2, 3, 6))


def _format_column(column: dict[str, Any]) -> tuple[str, ...]:
    encodings = sorted(column["encodings"], key=column["encodings"].__getitem__, reverse=True)
    nulls, chunks = column["nulls"], column["chunks"]
    if not chunks:
        return (column["name"], column["type"], "", "", "", "partition", "", "")
    return (
        column["name"],
        column["type"],
        format_bytes(column["stored_bytes"]),
        format_bytes(column["decoded_bytes"]),
        ",".join(sorted(column["codecs"])),
        ",".join(encodings[:_SHOWN_ENCODINGS]).lower(),
        "?" if nulls is None else f"{nulls:,}",
        "yes" if column["chunks_with_statistics"] == chunks
        else f"{100 * column['chunks_with_statistics'] // chunks} %" if column["chunks_with_statistics"] else "no",
    )  # fmt: skip


def _list(names: list[str]) -> str:
    shown = ", ".join(names[:FEW_BLOCKS])
    return shown if len(names) <= FEW_BLOCKS else f"{shown} and {len(names) - FEW_BLOCKS} more"
