"""When two DataFrames are sure to hold the same rows, so that what was staged of one serves the other.

Spark's own comparison of plans (``sameSemantics``) is exact within an application, but knows neither
names of columns, nor whether files have changed, nor that ``rand()`` or ``current_timestamp()`` give
other values each time. Its ``semanticHash`` has 32 bits. So identity here is the plan, the schema,
the settings of the session, and the input files as listed and as they are now; and where a part of a
plan cannot be looked into, nothing is the same.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from windrow.io.spark.plan_inputs import stored_inputs

__all__ = ["PlanIdentity", "identify"]

# Told from one application by another: everything else is the plan's own or of no matter for rows.
_SETTINGS = re.compile(r"spark\.sql\.(?!warehouse|debug|execution|adaptive|ui|streaming|artifact)")
_IDS = re.compile(r'"id":(\d+),"jvmId":"[^"]*"|#(\d+)')
_SPARK_OWN = ("org.apache.spark.sql.catalyst.", "org.apache.spark.sql.execution.datasources.LogicalRelation")
# What they hold (functions, rows) does not show in the text of a plan.
_OPAQUE = re.compile(
    r"UDF|UDAF|UDTF|Python|Pandas|Invoke|Reflection|\.objects\.|LocalRelation|ApplyFunction|V2Agg"
    r"|Map(Partitions|Elements|Groups)|CoGroup|Typed|Script|AppendColumns|Encoder"
)
_MADE_NAME = re.compile(r"_VectorAssembler_[0-9a-f]{12}$")


@dataclass(frozen=True)
class PlanIdentity:
    """What a DataFrame's rows depend on.

    Attributes
    ----------
    application
        The Spark application.
    plan
        Its analyzed plan, in the Java process.
    terms
        Everything beside the plan: schema, settings, input files.
    digest
        A digest of all, the same in every application; None where the plan does not show all that it is.
    sketch
        The plan but for its leaves, with MLlib's functions by what they hold, within the application; None
        where there are none, or the plan holds more that does not show.
    """

    application: str
    plan: Any = field(repr=False)
    terms: str
    digest: str | None
    sketch: str | None = None

    def same_rows(self, other: PlanIdentity) -> bool:
        """Whether the rows are sure to be the same, within an application."""
        if self.application != other.application or self.terms != other.terms:
            return False
        return bool(self.plan.sameResult(other.plan)) or self._same_sketch(other)

    def _same_sketch(self, other: PlanIdentity) -> bool:
        """Whether two plans are equal, function by function: to Spark no function that was made again is."""
        if self.sketch is None or self.sketch != other.sketch:
            return False
        pairs = zip(_leaves(self.plan), _leaves(other.plan), strict=True)
        return all(bool(leaf.sameResult(twin)) for leaf, twin in pairs)


def identify(df: Any) -> PlanIdentity | None:
    """Tell what a DataFrame's rows depend on; None where that cannot be told, or they differ each time."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        return _identify(df)
    except (Py4JError, PySparkException):
        # a plan of a shape, or a filesystem with a refusal, that nobody has thought of
        return None


def _identify(df: Any) -> PlanIdentity | None:
    spark, plan = df.sparkSession, df._jdf.queryExecution().analyzed()
    patterns = spark._jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    if plan.containsPattern(patterns.CURRENT_LIKE()) or not _is_deterministic(plan):
        return None
    inputs = stored_inputs(spark, list(_leaves(plan)))
    if inputs is None:
        return None
    terms = json.dumps([df.schema.json(), _settings(spark), inputs])
    text = _portable_text(plan)
    digest = None if text is None else hashlib.sha256(f"{text}\n{terms}".encode()).hexdigest()[:32]
    sketch = _sketch(spark, plan) if plan.containsPattern(patterns.SCALA_UDF()) else None
    return PlanIdentity(spark.sparkContext.applicationId, plan, terms, digest, sketch)


def _settings(spark: Any) -> list[str]:
    """The settings that were made, of those that may change what rows are computed."""
    text = spark._jsparkSession.sessionState().conf().getAllConfs().mkString("\n")
    made = sorted(line for line in text.splitlines() if _SETTINGS.match(line))
    # these have defaults that differ
    return [*made, spark.version, spark.conf.get("spark.sql.session.timeZone")]


def _leaves(plan: Any) -> Iterator[Any]:
    for part in (plan, *_sequence(plan.subqueriesAll())):
        yield from _sequence(part.collectLeaves())


def _is_deterministic(plan: Any) -> bool:
    """Whether a plan gives the same rows each time; MLlib's own functions do, though some deny it.

    They only keep the optimizer from calling them more often than once a row.
    """
    if plan.deterministic():
        return True
    plans = (plan, *_sequence(plan.subqueriesAll()))
    return all(_own_deterministic(node) for part in plans for node in _nodes(part))


def _own_deterministic(node: Any) -> bool:
    """Whether the expressions of one node of a plan are."""
    return all(_sure(expression) for expression in _sequence(node.expressions()))


def _sure(expression: Any) -> bool:
    if expression.deterministic():
        return True
    children = _sequence(expression.children())
    if all(child.deterministic() for child in children) and not _is_mllib(expression):
        return False
    return all(_sure(child) for child in children)


def _is_mllib(expression: Any) -> bool:
    if not _is_scala_udf(expression):
        return False
    return str(expression.function().getClass().getName()).startswith("org.apache.spark.ml.")


def _is_scala_udf(expression: Any) -> bool:
    return bool(expression.getClass().getSimpleName() == "ScalaUDF")


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in _sequence(plan.children()):
        yield from _nodes(child)


def _sequence(scala: Any) -> list[Any]:
    return [scala.apply(place) for place in range(scala.size())]


def _portable_text(plan: Any) -> str | None:
    """A plan in words that are the same in every application; None where they leave something out."""
    text = str(plan.toJSON())
    classes = set(re.findall(r'"class":"([^"]+)"', text)) - {"org.apache.spark.ml.linalg.VectorUDT"}
    if not all(name.startswith(_SPARK_OWN) and not _OPAQUE.search(name) for name in classes):
        return None
    # the JSON is exact about literals, the other about what JSON shows as null
    return _renumbered(text) + "\n" + _renumbered(plan.toString())


def _renumbered(text: str) -> str:
    """Count the numbers of expressions, which differ from one run to the next, from 0."""
    known: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        return f"#{known.setdefault(found[1] or found[2], len(known))}"

    return _IDS.sub(number, text)


def _sketch(spark: Any, plan: Any) -> str | None:
    """A plan in words within an application, its leaves aside; None where they leave something out."""
    from py4j.protocol import Py4JJavaError

    if plan.subqueriesAll().size():
        return None
    inner = [node for node in _nodes(plan) if node.children().size()]
    expressions = [e for node in _nodes(plan) for top in _sequence(node.expressions()) for e in _nodes(top)]
    functions = [expression for expression in expressions if _is_mllib(expression)]
    shown = [*inner, *(expression for expression in expressions if not _is_mllib(expression))]
    if not all(_shows_itself(str(part.getClass().getName())) for part in shown):
        return None
    try:
        contents = [_serialized(spark, expression.function()) for expression in functions]
    except Py4JJavaError:  # it holds what cannot be serialized
        return None
    text = f"{_renumbered(str(plan.toJSON()))}\n{_renumbered(plan.toString())}"
    for place, name in enumerate(_made_names(functions)):
        text = text.replace(name, f"{_MADE_NAME.sub('', name)}#{place}")
    return "\n".join([text, *contents])


def _shows_itself(name: str) -> bool:
    return name.startswith(_SPARK_OWN) and not _OPAQUE.search(name)


def _serialized(spark: Any, function: Any) -> str:
    """A digest of a function's class and all that it holds."""
    java = spark._jvm.java.io
    content = java.ByteArrayOutputStream()
    stream = java.ObjectOutputStream(content)
    stream.writeObject(function)
    stream.flush()
    return hashlib.sha256(bytes(content.toByteArray())).hexdigest()


def _made_names(functions: list[Any]) -> list[str]:
    """The names that VectorAssembler gives what it reads: they end in its own, which differs each time."""
    structs = [child for function in functions for child in _sequence(function.children())]
    named = [child for child in structs if child.getClass().getSimpleName() == "CreateNamedStruct"]
    names = [str(name) for struct in named for name in _sequence(struct.names())]
    return list(dict.fromkeys(name for name in names if _MADE_NAME.search(name)))
