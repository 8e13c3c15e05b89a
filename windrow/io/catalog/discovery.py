"""From paths to a manifest: a saved one, or from each file's metadata, or the listing if that suffices."""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Union

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.errors import PlanError, SourceError
from windrow.core.system.processes import count_waits
from windrow.core.text_types import text_array
from windrow.io.catalog.file_format import FileFormat, Format, IndexedFormat, SurveyedFormat, UnifyingFormat
from windrow.io.catalog.listing import list_files, locate_root
from windrow.io.catalog.manifest import HASH_BYTES, Fragment, Manifest, VariableBytes, load_manifest, narrowed
from windrow.io.catalog.schemas import MergedSchema, merge_schemas
from windrow.io.catalog.value_sizes import fixed_bits
from windrow.io.storage.file_versions import Version, version_from_listing
from windrow.io.storage.filesystems import Files, Paths
from windrow.io.storage.retries import Retries

ManifestOrPath = Union[Manifest, str, "os.PathLike[str]"]

_METADATA_THREADS = 64
# local files that tell whether their disk is slow
_FIRST_FILES = 32
_FILES_AT_ONCE = 1024


def resolve_files(
    paths: Paths | None,
    filesystem: Any,
    options: Mapping[str, Any] | None,
    manifest: ManifestOrPath | None,
    retries: Retries,
    format: Format | SurveyedFormat | IndexedFormat,
) -> tuple[Files, Manifest]:
    """List files and read their metadata; or use a manifest, and locate its files."""
    if manifest is None:
        if paths is None:
            raise PlanError("paths=None: give paths, or the manifest= that contains them")
        files, listed, infos = list_files(paths, filesystem, options, retries, format.name)
        return files, build_manifest(files, listed, format, infos)
    known = manifest if isinstance(manifest, Manifest) else load_manifest(manifest)
    if known.format != format.name:
        raise PlanError(
            f"manifest= is of {known.format} files, not of {format.name}: read it with the same format"
        )
    if known.options != format.options:
        raise PlanError(
            f"manifest= was made with {known.options or 'no options'}, and the current options are "
            f"{format.options or 'none'}: read with the same options, or save the manifest again"
        )
    # the files can have been copied or moved since, which changes stamps
    known = replace(known, stamps=None)
    if paths is None:
        return locate_root(known.root, None, filesystem, options, retries), known
    names = frozenset(known.paths.to_pylist())
    return locate_root(paths, names, filesystem, options, retries), known


def build_manifest(
    files: Files,
    paths: Sequence[str],
    format: Format | SurveyedFormat | IndexedFormat,
    infos: Sequence[Mapping[str, Any]] | None = None,
) -> Manifest:
    """Read the metadata of all files; for formats that do not need it, use only fsspec's infos from the listing."""
    if isinstance(format, SurveyedFormat):
        return _survey(files, paths, format, _find_versions(files, paths, infos))
    if isinstance(format, IndexedFormat):
        return _read_indices(
            files, format, dict(zip(paths, _find_versions(files, paths, infos), strict=True))
        )
    columns = _ManifestBuilder()
    if not files.local and _tells_versions(files, paths, infos):
        listed = {path: version_from_listing(info) for path, info in zip(paths, infos or (), strict=True)}
        files = _ListedFiles(
            files.root, files.filesystem, files.retries, files.machine, files.opening, versions=listed
        )
    for name, fragment in _read_fragments(files, paths, format):
        columns.add(name, fragment)
    return columns.manifest(files.url, paths, format)


def _survey(
    files: Files, paths: Sequence[str], format: SurveyedFormat, versions: Sequence[Version]
) -> Manifest:
    sizes = np.array([version.size_bytes for version in versions], np.int64)
    survey = format.survey(files, paths, sizes)
    variable = {
        name: VariableBytes(narrowed(column_bytes), narrowed(column_bytes))
        for name, column_bytes in survey.variable.items()
    }
    return Manifest(
        root=files.url,
        schema=survey.schema,
        paths=text_array(paths),
        file_bytes=sizes,
        # the content has not been read
        footer_hashes=np.zeros((len(paths), HASH_BYTES), np.uint8),
        row_group_ends=np.arange(1, len(paths) + 1),
        rows=np.ones(len(paths), np.uint8),
        encoded_bytes=narrowed(survey.encoded_bytes),
        variable=variable,
        null_counts=dict.fromkeys(survey.schema.names, 0),
        stamps=np.array([version.stamp for version in versions], np.uint64),
        format=format.name,
        options=format.options,
    )


def _read_indices(files: Files, format: IndexedFormat, versions: Mapping[str, Version]) -> Manifest:
    facts = format.read_index(files, versions)
    columns = _ManifestBuilder()
    for path, stated in facts.items():
        # the content has not been read
        columns.add(files.name(path), Fragment(versions[path], bytes(HASH_BYTES), stated))
    return columns.manifest(files.url, list(facts), format)


@dataclass(frozen=True)
class _ListedFiles(Files):
    """Files whose versions a listing tells, so that planning sends no request for them.

    A file that is replaced after the listing has another version when its rows are read, which is an error.
    """

    versions: Mapping[str, Version] = field(default_factory=dict, compare=False, repr=False)

    def look(self, relative: str) -> Version:
        return self.versions[relative]


def _find_versions(
    files: Files, paths: Sequence[str], infos: Sequence[Mapping[str, Any]] | None
) -> list[Version]:
    """The version of each file: from the listing, if that tells it; else by requests."""
    # local files are statted directly, since fsspec rounds times
    if files.local:
        return [_look(files, path) for path in paths]
    if _tells_versions(files, paths, infos):
        return [version_from_listing(info) for info in infos or ()]
    with ThreadPoolExecutor(_METADATA_THREADS, "windrow-metadata") as threads:
        return list(threads.map(lambda path: _look(files, path), paths))


def _tells_versions(files: Files, paths: Sequence[str], infos: Sequence[Mapping[str, Any]] | None) -> bool:
    """Whether a listing tells the versions of files, as it does that of the first one."""
    # pages of web servers have links only
    if not infos or any(info.get("size") is None or info.get("type") != "file" for info in infos):
        return False
    return _look(files, paths[0]) == version_from_listing(infos[0])


def _look(files: Files, path: str) -> Version:
    try:
        return files.look(path)
    except Exception:
        with files.mapped_errors(files.name(path)):
            raise


def _read_fragments(files: Files, paths: Sequence[str], format: Format) -> Iterator[tuple[str, Fragment]]:
    def look(path: str) -> tuple[str, Fragment]:
        name = files.name(path)
        with files.mapped_errors(name):
            fragment = format.look(files, path)
        if not fragment.facts.is_possible:
            raise SourceError(
                f"{name} states impossible sizes: it is corrupt; restore the file, rewrite it, or "
                "leave it out"
            )
        return name, fragment

    first = paths[:_FIRST_FILES] if files.local else []
    # waits, as for a disk: on a busy machine, time would tell less
    before = count_waits()
    yield from map(look, first)
    rest = paths[len(first) :]
    if before is not None and files.local and (count_waits() or 0) - before < len(first) / 2:
        # the files are in memory: threads would only wait for each other's GIL
        yield from map(look, rest)
        return
    with ThreadPoolExecutor(_METADATA_THREADS, "windrow-metadata") as threads:
        for start in range(0, len(rest), _FILES_AT_ONCE):
            yield from threads.map(look, rest[start : start + _FILES_AT_ONCE])


def merge_manifest(manifest: Manifest, format: FileFormat, name_file: Callable[[str], str]) -> MergedSchema:
    """The columns of all files, with the error of each one whose types do not unify; ``name_file`` names files."""
    if manifest.schema_numbers is None:
        return MergedSchema(manifest.schema, {})
    return _merge(format, name_schemas(manifest, name_file))


def name_schemas(manifest: Manifest, name_file: Callable[[str], str]) -> list[tuple[str, pa.Schema]]:
    """The distinct schemas of files, each with the name of the first file that has it."""
    if manifest.schema_numbers is None:
        return [(name_file(manifest.path(0)), manifest.schema)] if manifest.fragments else []
    _, firsts = np.unique(manifest.schema_numbers, return_index=True)
    names = [name_file(manifest.path(first)) for first in firsts.tolist()]
    return list(zip(names, manifest.schemas, strict=True))


def _merge(format: FileFormat, schemas: Sequence[tuple[str, pa.Schema]]) -> MergedSchema:
    return format.unify(schemas) if isinstance(format, UnifyingFormat) else merge_schemas(schemas)


def _sums(values: Sequence[int]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(values, dtype=np.int64)])


class _Range(NamedTuple):
    """Minimum and maximum of a column over ``files`` files in which it has the same type."""

    kind: pa.DataType
    low: int
    high: int
    files: int = 1

    def join(self, before: _Range | None) -> _Range:
        """The union of both ranges; files in which the column has another type are ignored."""
        if before is None or (before.kind is not self.kind and before.kind != self.kind):
            return before or self
        low, high = min(self.low, before.low), max(self.high, before.high)
        return _Range(self.kind, low, high, before.files + self.files)


class _ManifestBuilder:
    """Accumulates the columns of a manifest; mutable, and discarded when the manifest is built."""

    def __init__(self) -> None:
        # each schema with its place, and the first file that has it
        self._schemas: dict[bytes, tuple[int, str, pa.Schema]] = {}
        self._schema_numbers = array("q")
        # most files share one object: it, its place, and the types of its columns
        self._last_schema: tuple[pa.Schema, int, dict[str, pa.DataType]] | None = None
        self._sizes, self._ends = array("q"), array("q")
        self._digests, self._stamps = bytearray(), array("Q")
        self._rows, self._encoded = array("q"), array("q")
        self._variable: dict[str, tuple[array[int], array[int]]] = {}
        self._nulls: dict[str, int | None] = {}
        self._ranges: dict[str, _Range] = {}
        self._codecs: Counter[str] = Counter()
        self._filled = 0

    def add(self, name: str, fragment: Fragment) -> None:
        facts = fragment.facts
        if self._last_schema is None or self._last_schema[0] is not facts.schema:
            schema = facts.schema.remove_metadata()
            found = self._schemas.setdefault(bytes(schema.serialize()), (len(self._schemas), name, schema))
            # duplicate names raise an error later
            self._last_schema = facts.schema, found[0], {field.name: field.type for field in facts.schema}
        _, number, types = self._last_schema
        self._schema_numbers.append(number)
        for column, sizes in facts.variable.items():
            for known, new in zip(self._variable_column(column), sizes, strict=True):
                known.extend(new)
        for column, count in facts.nulls.items():
            before = self._nulls.get(column, 0)
            self._nulls[column] = None if before is None or count is None else before + count
        self._filled += any(facts.rows)
        for column, (low, high) in facts.ranges.items():
            self._ranges[column] = _Range(types[column], low, high).join(self._ranges.get(column))
        self._codecs.update(facts.codecs)
        self._rows.extend(facts.rows)
        self._encoded.extend(facts.encoded_bytes)
        self._sizes.append(fragment.version.size_bytes)
        self._ends.append(len(self._rows))
        self._digests += fragment.digest
        self._stamps.append(fragment.version.stamp)

    def _variable_column(self, column: str) -> tuple[array[int], array[int]]:
        """Encoded and decoded bytes so far; 0 in files in which the column is null or has a fixed width."""
        columns = self._variable.setdefault(column, (array("q"), array("q")))
        for known in columns:
            known.extend([0] * (len(self._rows) - len(known)))
        return columns

    def manifest(self, root: str, paths: Sequence[str], format: FileFormat) -> Manifest:
        merged = _merge(format, [(name, known) for _, name, known in self._schemas.values()])
        schema, differ = merged.schema, len(self._schemas) > 1 or bool(merged.conflicts)
        return Manifest(
            root=root,
            schema=schema,
            paths=text_array(paths),
            file_bytes=np.array(self._sizes, np.int64),
            footer_hashes=np.frombuffer(bytes(self._digests), np.uint8).reshape(len(paths), -1),
            row_group_ends=np.array(self._ends, np.int64),
            rows=narrowed(self._rows),
            encoded_bytes=narrowed(self._encoded),
            variable={
                field.name: VariableBytes(*map(narrowed, self._variable_column(field.name)))
                for field in schema
                # of a column with conflicting types, some files can have another width
                if fixed_bits(field.type) is None or field.name in self._variable
            },
            null_counts=self._null_counts(schema),
            ranges=self._known_ranges(schema),
            stamps=np.array(self._stamps, np.uint64),
            format=format.name,
            options=format.options,
            codecs=dict(self._codecs),
            schemas=tuple(known for _, _, known in self._schemas.values()) if differ else (),
            schema_numbers=np.array(self._schema_numbers, np.int64) if differ else None,
        )

    def _null_counts(self, schema: pa.Schema) -> dict[str, int | None]:
        """Nulls by column; every row of a file that lacks a column is one, unless files do not state their rows."""
        file_rows = np.diff(_sums(self._rows)[np.array(self._ends, np.int64)], prepend=0)
        rows = np.bincount(self._schema_numbers, file_rows, len(self._schemas)).astype(np.int64).tolist()
        names = [(rows[number], frozenset(known.names)) for number, _, known in self._schemas.values()]
        counts: dict[str, int | None] = {}
        for name in schema.names:
            lacking = [count for count, known in names if name not in known]
            stored = self._nulls[name]
            counts[name] = None if stored is None else stored + sum(lacking)
        return counts

    def _known_ranges(self, schema: pa.Schema) -> dict[str, tuple[int, int]]:
        """Ranges of the columns for which every file with rows has one, in the unified type."""
        types: dict[str, list[pa.DataType]] = {}
        for column in schema:
            types.setdefault(column.name, []).append(column.type)
        return {
            name: (known.low, known.high)
            for name, known in self._ranges.items()
            if known.files == self._filled and types.get(name) == [known.kind]
        }
