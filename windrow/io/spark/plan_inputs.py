"""Describes the inputs of a Spark plan: the driver's memory, or files with their current sizes and times."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ["describe_inputs"]

_LOGICAL = "org.apache.spark.sql.catalyst.plans.logical."
# Leaves whose rows are part of the plan itself.
_OWN_ROWS = {_LOGICAL + name for name in ("Range", "LocalRelation", "OneRowRelation", "CTERelationRef")}
# An RDD made only of these holds rows of the driver's memory, or of a checkpoint.
_DRIVER_RDDS = {"MapPartitionsRDD", "PythonRDD", "ParallelCollectionRDD", "LocalCheckpointRDD"}
_STATUS = re.compile(r"path=(.*?); isDirectory=\w+; length=(\d+);.*?modification_time=(\d+);")


def describe_inputs(spark: Any, leaves: Sequence[Any]) -> list[str] | None:
    """Describe each leaf of a plan that reads files, with a digest of them; None if any leaf is opaque."""
    described = []
    for leaf in leaves:
        name = leaf.getClass().getName()
        if name.endswith(".LogicalRelation"):
            files = _describe_files(spark, leaf.relation())
            if files is None:
                return None
            described.append(files)
        elif name not in _OWN_ROWS and not (name.endswith(".LogicalRDD") and _is_in_driver(leaf.rdd())):
            return None
    return described


def _is_in_driver(rdd: Any) -> bool:
    """Return whether an RDD's rows come from the driver's memory; as in Spark, Python functions count as pure."""
    if rdd.getClass().getSimpleName() not in _DRIVER_RDDS:
        return False
    dependencies = rdd.dependencies()
    return all(_is_in_driver(dependencies.apply(place).rdd()) for place in range(dependencies.size()))


def _describe_files(spark: Any, relation: Any) -> str | None:
    """Return the format, its options, and a digest of the listed files and their current status."""
    if relation.getClass().getSimpleName() != "HadoopFsRelation":
        return None
    location = relation.location()
    if location.getClass().getSimpleName() != "InMemoryFileIndex":
        return None
    # a DataFrame reads the files that existed when it was created
    listed = sorted(_statuses(location.allFiles().mkString("\n")))
    now = dict(_statuses(_list_now(spark, [path for path, _ in listed])))
    digest = hashlib.sha256()
    for path, status in listed:
        digest.update(f"{path}\n{status}\n{now.get(path, 'gone')}\n".encode())
    kind = relation.fileFormat().getClass().getName()
    return f"{kind} {relation.options().toString()} {relation.schema().json()} {digest.hexdigest()}"


def _list_now(spark: Any, paths: Sequence[str]) -> str:
    """Return the current status of all files in the folders of ``paths``, as the filesystem lists them."""
    jvm, configuration = spark._jvm, spark._jsc.hadoopConfiguration()
    found = []
    for folder in sorted({posixpath.dirname(path) for path in paths}):
        place = jvm.org.apache.hadoop.fs.Path(folder)
        filesystem = place.getFileSystem(configuration)
        if filesystem.exists(place):
            found += [status.toString() for status in filesystem.listStatus(place)]
    return "\n".join(found)


def _statuses(text: str) -> Iterator[tuple[str, str]]:
    """Parse (path, size and time) of each file from Hadoop's printed file statuses."""
    for path, length, modified in _STATUS.findall(text):
        yield path, f"{length} {modified}"
