"""Resolves a user's paths to files and their manifest: by listing, or from a saved manifest."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Union

from windrow.core.errors import PlanError
from windrow.io.catalog.discovery import build_manifest
from windrow.io.catalog.listing import list_infos, locate_root
from windrow.io.catalog.manifest import Manifest, load_manifest
from windrow.io.formats.format import Format, SurveyedFormat
from windrow.io.storage.filesystems import Files, Paths
from windrow.io.storage.retries import Retries

__all__ = ["ManifestOrPath", "resolve_files"]

ManifestOrPath = Union[Manifest, str, "os.PathLike[str]"]


def resolve_files(
    paths: Paths | None,
    filesystem: Any,
    options: Mapping[str, Any] | None,
    manifest: ManifestOrPath | None,
    retries: Retries,
    format: Format | SurveyedFormat,
) -> tuple[Files, Manifest]:
    """List files and read their metadata; or use a manifest, and locate its files.

    Raises
    ------
    SourceError
        If paths match nothing, a file cannot be read, or schemas differ.
    PlanError
        If the arguments name no files.
    """
    if manifest is None:
        if paths is None:
            raise PlanError("paths=None: give paths, or the manifest= that contains them")
        files, listed, infos = list_infos(paths, filesystem, options, retries)
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
