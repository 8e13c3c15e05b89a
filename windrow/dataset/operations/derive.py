"""What all operations of datasets share: parents, columns in arguments, and the dataset of a derived source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.errors import PlanError
from windrow.dataset.logical_plan import LogicalPlan
from windrow.pipeline.exchange.derived_source import Parent
from windrow.pipeline.exchange.exchange_source import ExchangePlan, exchange_source
from windrow.pipeline.exchange.layouts import Layout, WindowLayout
from windrow.pipeline.exchange.rearranged_source import RearrangedSource
from windrow.pipeline.tasks.key_columns import check_key
from windrow.shuffle.order.epoch_plan import WindowCut

__all__ = [
    "check_keys",
    "check_sort",
    "exchange_plan",
    "list_keys",
    "make_parent",
    "rearranged_plan",
    "windowed_plan",
]


def make_parent(plan: LogicalPlan) -> Parent:
    """Return the source and transforms of a dataset's plan; a PlanError if a transform reserves resources."""
    for stage in plan.maps:
        if stage.resources:
            # the tasks that read derived blocks cannot start actors
            raise PlanError(
                f"{stage.name} with {stage.resources} comes before an operation on the whole dataset: write its rows "
                "with write_parquet(), and read them again"
            )
    return Parent(plan.read_source, plan.maps)


def rearranged_plan(plans: Sequence[LogicalPlan], layout: Layout, call: str) -> LogicalPlan:
    """Return the plan whose rows a layout takes from other plans; the first one's options hold."""
    parents = tuple(make_parent(plan) for plan in plans)
    source = RearrangedSource(parents, call, f"{plans[0]}\n  .{call}", layout)
    return _plan_of(source, plans[0])


def windowed_plan(plans: Sequence[LogicalPlan], layout: WindowLayout, call: str) -> LogicalPlan:
    """Return the plan of a pipeline with the windows of a layout; the first one's epochs and options hold."""
    return replace(
        rearranged_plan(plans, layout, call), cut=WindowCut(of_source=True), epochs=plans[0].epochs
    )


def exchange_plan(plan: LogicalPlan, parent: Parent, exchange: ExchangePlan, call: str) -> LogicalPlan:
    """Return the plan of an exchange's result."""
    source = exchange_source(parent, exchange, plan.options, call, f"{plan}\n  .{call}")
    return _plan_of(source, plan)


def _plan_of(source: Any, plan: LogicalPlan) -> LogicalPlan:
    # the column of row ids is an ordinary one in the result
    return LogicalPlan(source, options=replace(plan.options, row_id_column=None))


def list_keys(key: Any, call: str) -> tuple[str, ...]:
    """Return a column or a list of columns as a tuple, or raise a PlanError."""
    keys = (key,) if isinstance(key, str) else tuple(key) if isinstance(key, Sequence) else ()
    if not keys or not all(isinstance(name, str) for name in keys):
        raise PlanError(f"{call}: {key!r} must be the name of a column, or a list of names")
    if len(set(keys)) < len(keys):
        raise PlanError(f"{call}: {key!r} names a column twice")
    return keys


def check_sort(key: Any, descending: Any, call: str) -> tuple[tuple[str, ...], tuple[bool, ...]]:
    """Return the columns to sort by, and whether each descends, or raise a PlanError."""
    keys = list_keys(key, call)
    is_one = isinstance(descending, (bool, np.bool_)) or not isinstance(descending, Iterable)
    down = [descending] * len(keys) if is_one else list(descending)
    down = [bool(each) if isinstance(each, np.bool_) else each for each in down]
    if len(down) != len(keys) or not all(isinstance(each, bool) for each in down):
        raise PlanError(
            f"{call}: descending={descending!r} must be True or False, or a list with one for each key"
        )
    return keys, tuple(down)


def check_keys(schema: pa.Schema | None, keys: Sequence[str], call: str) -> None:
    """Raise a PlanError unless rows can be sorted by all columns; a schema of None is not known yet."""
    for name in keys if schema is not None else ():
        check_key(schema, name, call)
