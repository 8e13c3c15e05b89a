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

from windrow.io.spark.inputs import stored_inputs

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
    """

    application: str
    plan: Any = field(repr=False)
    terms: str
    digest: str | None

    def same_rows(self, other: PlanIdentity) -> bool:
        """Whether the rows are sure to be the same, within an application."""
        return (
            self.application == other.application
            and self.terms == other.terms
            and bool(self.plan.sameResult(other.plan))
        )


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
    return PlanIdentity(spark.sparkContext.applicationId, plan, terms, digest)


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
