"""Decides whether two DataFrames provably have the same rows, so that staged files can be reused.

Spark's own comparison of plans (``sameSemantics``) is exact within an application, but ignores column
names, changes of files, and that ``rand()`` or ``current_timestamp()`` return other values each time.
Its ``semanticHash`` has only 32 bits. So the identity computed here covers the plan, the schema, the
session's settings, and the input files as listed and as they are now. If any part of a plan is
opaque, the DataFrame equals no other.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

# Settings that can change the rows; all others are part of the plan or do not affect rows.
_SETTINGS = re.compile(r"spark\.sql\.(?!warehouse|debug|execution|adaptive|ui|streaming|artifact)")
_IDS = re.compile(r'"id":(\d+),"jvmId":"[^"]*"|#(\d+)')
_SPARK_OWN = ("org.apache.spark.sql.catalyst.", "org.apache.spark.sql.execution.datasources.LogicalRelation")
# Classes that hold functions or rows, which the text of a plan does not show.
_OPAQUE = re.compile(
    r"UDF|UDAF|UDTF|Python|Pandas|Invoke|Reflection|\.objects\.|LocalRelation|ApplyFunction|V2Agg"
    r"|Map(Partitions|Elements|Groups)|CoGroup|Typed|Script|AppendColumns|Encoder"
)
_LOGICAL = "org.apache.spark.sql.catalyst.plans.logical."
# Leaves whose rows are part of the plan itself.
_OWN_ROWS = {_LOGICAL + name for name in ("Range", "LocalRelation", "OneRowRelation", "CTERelationRef")}
# An RDD made only of these holds rows of the driver's memory, or of a checkpoint.
_DRIVER_RDDS = {"MapPartitionsRDD", "PythonRDD", "ParallelCollectionRDD", "LocalCheckpointRDD"}
_STATUS = re.compile(r"path=(.*?); isDirectory=\w+; length=(\d+);.*?modification_time=(\d+);")
_GENERATED_NAME = re.compile(r"_VectorAssembler_[0-9a-f]{12}$")


@dataclass(frozen=True)
class PlanIdentity:
    """Everything that a DataFrame's rows depend on."""

    application: str
    # the analyzed plan: a handle of the Java object
    plan: Any = field(repr=False)
    # everything besides the plan: schema, settings, input files
    terms: str
    # of plan and terms, the same in every application; None if parts of the plan are opaque
    digest: str | None
    # text of the plan without its leaves, with digests of MLlib's functions, comparable within the
    # application; None if there are no such functions, or other parts are opaque
    structure: str | None = None

    def same_rows(self, other: PlanIdentity) -> bool:
        """Return whether the rows are provably the same, within an application."""
        if self.application != other.application or self.terms != other.terms:
            return False
        return bool(self.plan.sameResult(other.plan)) or self._same_structure(other)

    def _same_structure(self, other: PlanIdentity) -> bool:
        """Compare plans with MLlib functions, which Spark considers unequal once they are created again."""
        if self.structure is None or self.structure != other.structure:
            return False
        pairs = zip(_leaves(self.plan), _leaves(other.plan), strict=True)
        return all(bool(leaf.sameResult(twin)) for leaf, twin in pairs)


def identify(df: Any) -> PlanIdentity | None:
    """Return the identity of a DataFrame's rows; None if it is unknown, or the rows differ each time."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        return _identify(df)
    except (Py4JError, PySparkException):
        # an unexpected kind of plan, or an error of a filesystem: only reuse is lost
        return None


def _identify(df: Any) -> PlanIdentity | None:
    spark, plan = df.sparkSession, df._jdf.queryExecution().analyzed()
    patterns = spark._jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    if plan.containsPattern(patterns.CURRENT_LIKE()) or not _is_deterministic(plan):
        return None
    inputs = _describe_inputs(spark, list(_leaves(plan)))
    if inputs is None:
        return None
    terms = json.dumps([df.schema.json(), _settings(spark), inputs])
    text = _portable_text(plan)
    digest = None if text is None else hashlib.sha256(f"{text}\n{terms}".encode()).hexdigest()[:32]
    structure = _structure(spark, plan) if plan.containsPattern(patterns.SCALA_UDF()) else None
    return PlanIdentity(spark.sparkContext.applicationId, plan, terms, digest, structure)


def _describe_inputs(spark: Any, leaves: Sequence[Any]) -> list[str] | None:
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
    return all(_is_in_driver(dependency.rdd()) for dependency in _sequence(rdd.dependencies()))


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


def _settings(spark: Any) -> list[str]:
    """Return the settings of the session that can change the computed rows."""
    text = spark._jsparkSession.sessionState().conf().getAllConfs().mkString("\n")
    explicit = sorted(line for line in text.splitlines() if _SETTINGS.match(line))
    # getAllConfs() omits defaults, and these two differ between installations
    return [*explicit, spark.version, spark.conf.get("spark.sql.session.timeZone")]


def _leaves(plan: Any) -> Iterator[Any]:
    for part in (plan, *_sequence(plan.subqueriesAll())):
        yield from _sequence(part.collectLeaves())


def _is_deterministic(plan: Any) -> bool:
    """Return whether a plan returns the same rows each time.

    MLlib's functions count as deterministic. Some are declared nondeterministic only to keep the
    optimizer from calling them more than once per row.
    """
    if plan.deterministic():
        return True
    plans = (plan, *_sequence(plan.subqueriesAll()))
    nodes = (node for part in plans for node in _nodes(part))
    return all(_expression_is_deterministic(part) for node in nodes for part in _sequence(node.expressions()))


def _expression_is_deterministic(expression: Any) -> bool:
    if expression.deterministic():
        return True
    children = _sequence(expression.children())
    if all(child.deterministic() for child in children) and not _is_mllib(expression):
        return False
    return all(_expression_is_deterministic(child) for child in children)


def _is_mllib(expression: Any) -> bool:
    if expression.getClass().getSimpleName() != "ScalaUDF":
        return False
    return str(expression.function().getClass().getName()).startswith("org.apache.spark.ml.")


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in _sequence(plan.children()):
        yield from _nodes(child)


def _sequence(scala: Any) -> list[Any]:
    return [scala.apply(place) for place in range(scala.size())]


def _portable_text(plan: Any) -> str | None:
    """Return a text of a plan that is the same in every application; None if parts are opaque."""
    text = str(plan.toJSON())
    classes = set(re.findall(r'"class":"([^"]+)"', text)) - {"org.apache.spark.ml.linalg.VectorUDT"}
    if not all(map(_is_transparent, classes)):
        return None
    # the JSON is exact about literals; toString() shows what the JSON has as null
    return _renumbered(text) + "\n" + _renumbered(plan.toString())


def _renumbered(text: str) -> str:
    """Renumber expression ids from 0, since they differ between executions."""
    known: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        return f"#{known.setdefault(found[1] or found[2], len(known))}"

    return _IDS.sub(number, text)


def _structure(spark: Any, plan: Any) -> str | None:
    """Return a text of a plan without its leaves, within an application; None if parts are opaque."""
    from py4j.protocol import Py4JJavaError

    if plan.subqueriesAll().size():
        return None
    inner = [node for node in _nodes(plan) if node.children().size()]
    expressions = [e for node in _nodes(plan) for top in _sequence(node.expressions()) for e in _nodes(top)]
    functions = [expression for expression in expressions if _is_mllib(expression)]
    shown = [*inner, *(expression for expression in expressions if not _is_mllib(expression))]
    if not all(_is_transparent(str(part.getClass().getName())) for part in shown):
        return None
    try:
        contents = [_serialized(spark, expression.function()) for expression in functions]
    except Py4JJavaError:  # a function holds an object that cannot be serialized
        return None
    text = f"{_renumbered(str(plan.toJSON()))}\n{_renumbered(plan.toString())}"
    for place, name in enumerate(_generated_names(functions)):
        text = text.replace(name, f"{_GENERATED_NAME.sub('', name)}#{place}")
    return "\n".join([text, *contents])


def _is_transparent(name: str) -> bool:
    return name.startswith(_SPARK_OWN) and not _OPAQUE.search(name)


def _serialized(spark: Any, function: Any) -> str:
    """Return a digest of a function's serialized class and content."""
    java = spark._jvm.java.io
    content = java.ByteArrayOutputStream()
    stream = java.ObjectOutputStream(content)
    stream.writeObject(function)
    stream.flush()
    return hashlib.sha256(bytes(content.toByteArray())).hexdigest()


def _generated_names(functions: list[Any]) -> list[str]:
    """Return the names that VectorAssembler gives its inputs; they end in a uid that differs each time."""
    structs = [child for function in functions for child in _sequence(function.children())]
    named = [child for child in structs if child.getClass().getSimpleName() == "CreateNamedStruct"]
    names = [str(name) for struct in named for name in _sequence(struct.names())]
    return list(dict.fromkeys(name for name in names if _GENERATED_NAME.search(name)))
