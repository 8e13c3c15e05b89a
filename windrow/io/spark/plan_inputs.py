"""Where a plan's rows come from: the driver's memory, or files; and which files, as they are now."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ["stored_inputs"]

_LOGICAL = "org.apache.spark.sql.catalyst.plans.logical."
# Rows of the plan itself, or of another part of it.
_OWN_ROWS = {_LOGICAL + name for name in ("Range", "LocalRelation", "OneRowRelation", "CTERelationRef")}
# An RDD of these alone was made of what the driver held, or of a checkpoint.
_HELD_RDDS = {"MapPartitionsRDD", "PythonRDD", "ParallelCollectionRDD", "LocalCheckpointRDD"}
_STATUS = re.compile(r"path=(.*?); isDirectory=\w+; length=(\d+);.*?modification_time=(\d+);")


def stored_inputs(spark: Any, leaves: Sequence[Any]) -> list[str] | None:
    """Describe each leaf of a plan, with a digest of its files; None where one cannot be looked into."""
    described = []
    for leaf in leaves:
        name = leaf.getClass().getName()
        if name.endswith(".LogicalRelation"):
            files = _describe_files(spark, leaf.relation())
            if files is None:
                return None
            described.append(files)
        elif name not in _OWN_ROWS and not (name.endswith(".LogicalRDD") and _is_held(leaf.rdd())):
            return None
    return described


def _is_held(rdd: Any) -> bool:
    """Whether an RDD comes from the memory of the driver; its Python functions count as pure, as for Spark."""
    if rdd.getClass().getSimpleName() not in _HELD_RDDS:
        return False
    dependencies = rdd.dependencies()
    return all(_is_held(dependencies.apply(place).rdd()) for place in range(dependencies.size()))


def _describe_files(spark: Any, relation: Any) -> str | None:
    """The format, its options, and the files: those that were listed, and what they are now."""
    if relation.getClass().getSimpleName() != "HadoopFsRelation":
        return None
    location = relation.location()
    if location.getClass().getSimpleName() != "InMemoryFileIndex":
        return None
    # a DataFrame reads the files that were there when it was made
    listed = sorted(_statuses(location.allFiles().mkString("\n")))
    now = dict(_statuses(_list_now(spark, [path for path, _ in listed])))
    digest = hashlib.sha256()
    for path, status in listed:
        digest.update(f"{path}\n{status}\n{now.get(path, 'gone')}\n".encode())
    kind = relation.fileFormat().getClass().getName()
    return f"{kind} {relation.options().toString()} {relation.schema().json()} {digest.hexdigest()}"


def _list_now(spark: Any, paths: Sequence[str]) -> str:
    """The status of all that lies beside some files, asked of the filesystem now."""
    jvm, configuration = spark._jvm, spark._jsc.hadoopConfiguration()
    found = []
    for folder in sorted({posixpath.dirname(path) for path in paths}):
        place = jvm.org.apache.hadoop.fs.Path(folder)
        filesystem = place.getFileSystem(configuration)
        if filesystem.exists(place):
            found += [status.toString() for status in filesystem.listStatus(place)]
    return "\n".join(found)


def _statuses(text: str) -> Iterator[tuple[str, str]]:
    """(path, size and time) of each file in what Hadoop prints."""
    for path, length, modified in _STATUS.findall(text):
        yield path, f"{length} {modified}"
