"""What all readers of files share: where the files are, what of them is read, and how they become a Dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from windrow.core.byte_sizes import parse_bytes
from windrow.core.errors import PlanError
from windrow.dataset.dataset import Dataset
from windrow.dataset.logical_plan import LogicalPlan
from windrow.io.catalog.column_selection import check_schema_argument
from windrow.io.catalog.discovery import ManifestOrPath
from windrow.io.catalog.file_format import Format, IndexedFormat, SurveyedFormat
from windrow.io.catalog.file_source import open_files
from windrow.io.storage.filesystems import Paths
from windrow.io.storage.retries import Retries

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc


class Location(NamedTuple):
    """Where the files are and how they are reached: the arguments of these names of every reader."""

    paths: Paths | None
    filesystem: Any
    storage_options: Mapping[str, Any] | None
    manifest: ManifestOrPath | None
    retry_seconds: float


class Selection(NamedTuple):
    """Which rows and columns the dataset has: the arguments of these names of every reader."""

    columns: Sequence[str] | None
    filter: pc.Expression | None
    partitioning: str | None
    include_paths: bool
    directory_column: str | None = None
    schema: pa.Schema | None = None


def parsed_types(dtypes: Any, schema: pa.Schema | None) -> Any:
    """The types that text is parsed as: those of ``schema=``, which replaces ``dtypes=``."""
    if schema is None:
        return dtypes
    if dtypes is not None:
        raise PlanError("schema= states the types of all columns that are read: leave out dtypes=")
    return check_schema_argument(schema)


def read_files(
    format: Format | SurveyedFormat | IndexedFormat,
    location: Location,
    selection: Selection,
    target_block_bytes: int | str,
) -> Dataset:
    """Return files of a format as a dataset."""
    source = open_files(
        location.paths,
        format,
        **selection._asdict(),
        filesystem=location.filesystem,
        storage_options=location.storage_options,
        manifest=location.manifest,
        target_block_bytes=parse_block_bytes(target_block_bytes),
        retries=Retries(seconds=location.retry_seconds),
    )
    return Dataset(LogicalPlan(source))


def parse_block_bytes(size: int | str) -> int | None:
    """The bytes of ``target_block_bytes``; None for ``"auto"``."""
    return None if size == "auto" else parse_bytes(size, "target_block_bytes")
