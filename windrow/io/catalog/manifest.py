"""The manifest: files, row groups and sizes of a dataset in NumPy arrays, saved as ``.npz``; and what one file states.

It holds the files' metadata and nothing about how they are read: columns, filters and partitioning are
applied later to the same manifest. A million row groups take about 16 MB, plus 8 to 16 MB for each
variable-width column. A `Fragment` is the metadata of one file that planning needs, in a form common to all formats.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.cached_properties import cached_property
from windrow.core.errors import SourceError
from windrow.io.catalog.value_sizes import fixed_bits
from windrow.io.storage.file_versions import Version

HASH_BYTES = 16

END_BYTES = 16 * 1024
# limit for rows or bytes of a row group, so that sums fit into 64 bits
_LARGEST = 2**48
Unsigned = NDArray[np.unsignedinteger[Any]]
_FORMAT = "windrow manifest"
# 2: files of several schemas
_FORMAT_VERSIONS = (1, 2)
_ARRAYS = ("file_bytes", "footer_hashes", "row_group_ends", "rows", "encoded_bytes")


@dataclass(frozen=True)
class FragmentFacts:
    """The content of a file, as far as its metadata states it; rows and bytes are by row group."""

    schema: pa.Schema
    rows: list[int]  # an estimate of 1 or more if the format does not store them
    encoded_bytes: list[int]  # uncompressed bytes of all columns
    variable: Mapping[str, tuple[list[int], list[int]]]  # variable-width columns: encoded and decoded bytes
    nulls: Mapping[str, int | None]  # by column; None where unknown
    # minimum and maximum of integer and time columns, where statistics of all row groups state them
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    # stored bytes by codec, such as "zstd", of the first row group, where the metadata names codecs
    codecs: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_possible(self) -> bool:
        """Whether all sizes are non-negative and small enough for a real file."""
        stated = (
            self.rows,
            self.encoded_bytes,
            *(sizes for pair in self.variable.values() for sizes in pair),
        )
        return all(min(sizes, default=0) >= 0 and max(sizes, default=0) <= _LARGEST for sizes in stated)


def estimate_variable(
    schema: pa.Schema, counts: Sequence[int], means: Mapping[str, float]
) -> dict[str, tuple[list[int], list[int]]]:
    """The bytes of variable-width columns by row group: its count times the mean of the column, 1 where unknown."""
    names = [field.name for field in schema if fixed_bits(field.type) is None]
    sizes = {name: [round(count * means.get(name, 1)) for count in counts] for name in names}
    return {name: (each, each) for name, each in sizes.items()}


@dataclass(frozen=True)
class Fragment:
    """A file when its metadata was read: its version, a digest of its content, and its facts."""

    version: Version
    digest: bytes
    facts: FragmentFacts


def digest_parts(parts: Iterable[bytes]) -> str:
    """Digest byte strings with their lengths, so that no two lists of them give the same input."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def digest_schema(schema: pa.Schema, options: str = "") -> str:
    """A short digest of a schema's names and types, for checkpoints."""
    return digest_briefly(("\n".join(f"{field.name}: {field.type}" for field in schema) + options).encode())


def digest_briefly(content: bytes) -> str:
    """A digest of 16 digits, for checkpoints."""
    return hashlib.sha256(content).hexdigest()[:16]


def digest_ends(read_range: Callable[[int, int], Any], size_bytes: int) -> bytes:
    """Digest a file's size and its first and last 16 KiB, for formats without a footer."""
    digest = hashlib.sha256(size_bytes.to_bytes(8, "little"))
    ends = [(0, END_BYTES), (size_bytes - END_BYTES, size_bytes)]
    for start, stop in ends if size_bytes > 2 * END_BYTES else [(0, size_bytes)]:
        if stop > start:
            digest.update(bytes(read_range(start, stop)))
    return digest.digest()[:HASH_BYTES]


@dataclass(frozen=True, eq=False)
class VariableBytes:
    """(row groups,) bytes of a variable-width column: encoded, and estimated in memory."""

    encoded: Unsigned
    memory: Unsigned


@dataclass(frozen=True, eq=False)
class Manifest:
    """The files of a dataset and their row groups, in stored order: arrays of one value a fragment or row group."""

    root: str  # root, ranges, stamps and codecs are not part of the fingerprint
    schema: pa.Schema  # of the files, merged
    paths: pa.LargeStringArray  # by fragment, below the root, with "/"
    file_bytes: NDArray[np.int64]  # by fragment
    footer_hashes: NDArray[np.uint8]  # (fragments, 16) digests of the raw footers
    row_group_ends: NDArray[np.int64]  # cumulative row groups, each fragment included
    rows: Unsigned  # by row group
    encoded_bytes: Unsigned  # by row group: encoded, uncompressed bytes of all columns
    variable: Mapping[str, VariableBytes]
    null_counts: Mapping[str, int | None]  # by column; None where unknown
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    stamps: NDArray[np.uint64] | None = None
    format: str = "Parquet"
    options: str = ""  # those of the format that change the rows or columns that the files hold
    codecs: Mapping[str, int] = field(default_factory=dict)  # those of first row groups, with stored bytes
    schemas: tuple[pa.Schema, ...] = ()  # the distinct ones, if files differ; else none
    schema_numbers: NDArray[np.int64] | None = (
        None  # by fragment, its place in ``schemas``; None if files agree
    )

    def __repr__(self) -> str:
        return f"Manifest({self.fragments} fragments, {self.row_groups} row groups, {self.root!r})"

    @property
    def fragments(self) -> int:
        return len(self.paths)

    @property
    def row_groups(self) -> int:
        return len(self.rows)

    @property
    def row_starts(self) -> NDArray[np.int64]:
        """(row groups + 1,) the rows before each row group, and those of all."""
        return np.append(0, np.cumsum(self.rows, dtype=np.int64))

    @property
    def common_columns(self) -> frozenset[str]:
        """The columns that every file with columns has."""
        known = [frozenset(schema.names) for schema in self.schemas if len(schema)]
        return frozenset.intersection(*known) if known else frozenset(self.schema.names)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of relative paths, sizes and footers, independent of the data's location."""
        digest = hashlib.sha256(b"windrow fingerprint 1")
        offsets, text = _text_arrays(self.paths)
        for part in (offsets, text, self.file_bytes, self.footer_hashes):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(np.ascontiguousarray(part).astype(part.dtype.newbyteorder("<")).tobytes())
        return digest.hexdigest()

    def head(self, fragments: int) -> Manifest:
        """The manifest of the first ``fragments`` files; null counts are unknown, since they are not stored by file."""
        groups = int(self.row_group_ends[fragments - 1]) if fragments else 0
        variable = {
            name: VariableBytes(column.encoded[:groups], column.memory[:groups])
            for name, column in self.variable.items()
        }
        return replace(
            self,
            paths=self.paths.slice(0, fragments),
            file_bytes=self.file_bytes[:fragments],
            footer_hashes=self.footer_hashes[:fragments],
            row_group_ends=self.row_group_ends[:fragments],
            rows=self.rows[:groups],
            encoded_bytes=self.encoded_bytes[:groups],
            variable=variable,
            null_counts=dict.fromkeys(self.null_counts),
            stamps=None,
            schema_numbers=None if self.schema_numbers is None else self.schema_numbers[:fragments],
        )

    def path(self, fragment: int) -> str:
        return str(self.paths[fragment].as_py())


def narrowed(values: Any) -> Unsigned:
    """Convert counts to the narrowest unsigned type that holds them."""
    wide = np.asarray(values, dtype=np.uint64)
    return wide.astype(np.min_scalar_type(int(wide.max(initial=0))))


def save_manifest(manifest: Manifest, path: Any) -> None:
    """Write a manifest as plain arrays and JSON (an ``.npz``), without pickles."""
    head = {
        "format": _FORMAT,
        "version": _FORMAT_VERSIONS[-1] if manifest.schemas else _FORMAT_VERSIONS[0],
        "root": manifest.root,
        "file_format": manifest.format,
        "file_options": manifest.options,
        "null_counts": dict(manifest.null_counts),
        "ranges": dict(manifest.ranges),
        "variable": list(manifest.variable),
        "codecs": dict(manifest.codecs),
        "schemas": len(manifest.schemas),
    }
    offsets, text = _text_arrays(manifest.paths)
    arrays: dict[str, Any] = {
        "head": np.frombuffer(json.dumps(head).encode(), np.uint8),
        "schema": np.frombuffer(manifest.schema.serialize(), np.uint8),
        "path_offsets": offsets,
        "path_text": text,
        **{name: getattr(manifest, name) for name in _ARRAYS},
    }
    for index, column in enumerate(manifest.variable.values()):
        arrays[f"encoded_{index}"], arrays[f"memory_{index}"] = column.encoded, column.memory
    for index, schema in enumerate(manifest.schemas):
        arrays[f"schema_{index}"] = np.frombuffer(schema.serialize(), np.uint8)
    if manifest.schema_numbers is not None:
        arrays["schema_numbers"] = manifest.schema_numbers
    digest = _digest(arrays)
    try:
        with Path(path).open("wb") as file:
            np.savez(file, digest=digest, **arrays)
    except OSError as error:
        raise SourceError(f"the manifest cannot be written to {path}: {error}; check the path") from error


def load_manifest(path: Any) -> Manifest:
    """Read a saved manifest; a `SourceError` if it is not one, or of another format version."""
    try:
        with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        digest = arrays.pop("digest")
        head = json.loads(arrays["head"].tobytes())
        known = head["format"] == _FORMAT
    except FileNotFoundError as error:
        raise SourceError(f"no manifest at {path}: check the path, or make one with save_manifest") from error
    except PermissionError as error:
        raise SourceError(f"no read permission for the manifest {path}: grant it") from error
    except Exception as error:
        raise _make_corrupt_error(path, f"{type(error).__name__}: {error}") from error
    if not known or head.get("version") not in _FORMAT_VERSIONS:
        raise SourceError(
            f"{path} is a manifest of format version {head.get('version')}, this version of windrow reads versions "
            f"up to {_FORMAT_VERSIONS[-1]}: make it again with save_manifest"
        )
    if not np.array_equal(digest, _digest(arrays)):
        raise _make_corrupt_error(path, "its digest does not match its content")
    return _assemble(head, arrays)


def _assemble(head: Mapping[str, Any], arrays: Mapping[str, Any]) -> Manifest:
    offsets, text = arrays["path_offsets"], arrays["path_text"]
    paths = pa.LargeStringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(text))
    variable = {
        name: VariableBytes(arrays[f"encoded_{index}"], arrays[f"memory_{index}"])
        for index, name in enumerate(head["variable"])
    }
    return Manifest(
        root=head["root"],
        schema=_read_schema(arrays["schema"]),
        paths=paths,
        variable=variable,
        null_counts=head["null_counts"],
        # manifests of older versions of windrow have no ranges or codecs
        ranges={name: (low, high) for name, (low, high) in head.get("ranges", {}).items()},
        # and no format: they were all of Parquet
        format=head.get("file_format", "Parquet"),
        options=head.get("file_options", ""),
        codecs=head.get("codecs", {}),
        schemas=tuple(_read_schema(arrays[f"schema_{index}"]) for index in range(head.get("schemas", 0))),
        schema_numbers=arrays.get("schema_numbers"),
        **{name: arrays[name] for name in _ARRAYS},
    )


def _read_schema(serialized: NDArray[np.uint8]) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(serialized))


def _make_corrupt_error(path: Any, why: str) -> SourceError:
    return SourceError(f"{path} is not a manifest, or is corrupt ({why}): make it again with save_manifest")


def _digest(arrays: Mapping[str, Any]) -> NDArray[np.uint8]:
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name}:{array.dtype.str}:{array.shape};".encode())
        digest.update(np.ascontiguousarray(array).data)
    return np.frombuffer(digest.digest()[:HASH_BYTES], np.uint8)


def _text_arrays(texts: pa.LargeStringArray) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Offsets starting at 0 and UTF-8 bytes; ``texts`` can be a slice of a larger array."""
    _, offset_buffer, text_buffer = texts.buffers()
    if not len(texts) or offset_buffer is None:
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    offsets = np.frombuffer(offset_buffer, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    text = np.frombuffer(text_buffer or b"", np.uint8)[offsets[0] : offsets[-1]]
    return offsets - offsets[0], text
