"""Tables that the Python libraries cannot write but other engines do: with deletes or column mapping."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_ROARING_ARRAY = 1681511377
_DELTA_TYPES: dict[pa.DataType, Any] = {
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.timestamp("us"): "timestamp_ntz",
    pa.timestamp("us", "UTC"): "timestamp",
    pa.list_(pa.int64()): {"type": "array", "elementType": "long", "containsNull": True},
}


def rewrite_delta_log(table: Path, version: int, change: Callable[[list[dict[str, Any]]], None]) -> None:
    log = table / "_delta_log" / f"{version:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    change(actions)
    log.write_text("\n".join(map(json.dumps, actions)) + "\n")


def delete_from_delta(table: Path, deleted: Sequence[int]) -> None:
    """Commit a deletion vector for the one file of version 0, as version 1."""
    from pyroaring import BitMap

    lines = (table / "_delta_log" / f"{0:020}.json").read_text().splitlines()
    (add,) = [action["add"] for action in map(json.loads, lines) if "add" in action]
    payload = struct.pack("<IQI", _ROARING_ARRAY, 1, 0) + BitMap(deleted).serialize()
    vector = {
        "storageType": "i",
        "pathOrInlineDv": _z85(payload),
        "sizeInBytes": len(payload),
        "cardinality": len(deleted),
    }
    features = ["deletionVectors"]
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": features,
        "writerFeatures": features,
    }
    partitions = add["partitionValues"]
    remove = {"path": add["path"], "dataChange": True, "deletionTimestamp": 1, "partitionValues": partitions}
    actions = [{"protocol": protocol}, {"remove": remove}, {"add": {**add, "deletionVector": vector}}]
    log = table / "_delta_log" / f"{1:020}.json"
    log.write_text("\n".join(map(json.dumps, actions)) + "\n")


def commit_delta_file(
    table: Path, version: int, schema: pa.Schema, content: pa.Table, **options: Any
) -> None:
    """Commit a file as Spark writes it, and a new schema of the table, whose columns the file need not have.

    A column of the schema whose field metadata has ``physical`` is stored under that name.
    """
    path = table / f"part-{version}.parquet"
    pq.write_table(content, path, **options)
    features = ["columnMapping", "deletionVectors", "timestampNtz"]
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": features,
        "writerFeatures": features,
    }
    physical = {field.name: (field.metadata or {}).get(b"physical", field.name.encode()) for field in schema}
    fields = [
        {
            "name": field.name,
            "type": _DELTA_TYPES.get(field.type, str(field.type).replace("decimal128", "decimal").replace(" ", "")),
            "nullable": True,
            "metadata": {
                "delta.columnMapping.id": number,
                "delta.columnMapping.physicalName": physical[field.name].decode(),
            },
        }
        for number, field in enumerate(schema, 1)
    ]  # fmt: skip
    known = {
        "id": "00000000-0000-0000-0000-000000000000",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": [],
        "configuration": {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "99"},
        "createdTime": 0,
    }
    add = {
        "path": path.name,
        "partitionValues": {},
        "size": path.stat().st_size,
        "modificationTime": 0,
        "dataChange": True,
        "stats": json.dumps({"numRecords": content.num_rows}),
    }
    log = table / "_delta_log" / f"{version:020}.json"
    log.parent.mkdir(exist_ok=True)
    log.write_text(
        "\n".join(map(json.dumps, [{"protocol": protocol}, {"metaData": known}, {"add": add}])) + "\n"
    )


def map_delta_columns(table: Path, logical: dict[str, str], mode: str = "name") -> None:
    """Rename the columns of version 0 in the log, but not in its files."""

    def change(actions: list[dict[str, Any]]) -> None:
        for action in actions:
            if "protocol" in action:
                action["protocol"] = {"minReaderVersion": 2, "minWriterVersion": 5}
            if "metaData" in action:
                known = action["metaData"]
                schema = json.loads(known["schemaString"])
                for number, column in enumerate(schema["fields"], 1):
                    column["metadata"] = {
                        "delta.columnMapping.id": number,
                        "delta.columnMapping.physicalName": column["name"],
                    }
                    column["name"] = logical[column["name"]]
                known["schemaString"] = json.dumps(schema)
                known["partitionColumns"] = [logical[name] for name in known["partitionColumns"]]
                known["configuration"] = {
                    "delta.columnMapping.mode": mode,
                    "delta.columnMapping.maxColumnId": str(len(logical)),
                }

    rewrite_delta_log(table, 0, change)


def delete_from_iceberg(table: Any, positions: dict[str, Sequence[int]], *, equality: bool = False) -> None:
    """Commit a delete file, which pyiceberg reads but does not write."""
    from pyiceberg.manifest import (
        DataFile,
        DataFileContent,
        FileFormat,
        ManifestContent,
        ManifestEntry,
        ManifestEntryStatus,
        ManifestWriterV2,
    )
    from pyiceberg.typedef import Record

    class DeleteWriter(ManifestWriterV2):
        def content(self) -> ManifestContent:
            return ManifestContent.DELETES

    rows = [(path, position) for path, some in positions.items() for position in some]
    content = pa.table({"file_path": [path for path, _ in rows], "pos": [position for _, position in rows]})
    with table.transaction() as transaction:
        append = transaction.update_snapshot().fast_append()
        path = f"{table.location()}/data/deletes-{append.snapshot_id}.parquet"
        with table.io.new_output(path).create() as out:
            pq.write_table(content, out)
        delete = DataFile.from_args(
            content=DataFileContent.EQUALITY_DELETES if equality else DataFileContent.POSITION_DELETES,
            file_path=path,
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=len(rows),
            file_size_in_bytes=len(table.io.new_input(path)),
            equality_ids=[1] if equality else None,
        )
        delete.spec_id = table.spec().spec_id
        output = append.new_manifest_output()
        with DeleteWriter(table.spec(), table.schema(), output, append.snapshot_id, "deflate") as writer:
            writer.add_entry(
                ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED, snapshot_id=append.snapshot_id, data_file=delete
                )
            )
        manifest = writer.to_manifest_file()
        append._process_manifests = lambda manifests: [*manifests, manifest]
        append.commit()


def _z85(content: bytes) -> str:
    padded = content + bytes(-len(content) % 4)
    words = [int.from_bytes(padded[at : at + 4], "big") for at in range(0, len(padded), 4)]
    return "".join(_Z85[word // 85**power % 85] for word in words for power in range(4, -1, -1))
