"""mixture: several pipelines as one, each with a share that can change on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.errors import PlanError
from windrow.dataset.argument_checks import check_seed
from windrow.dataset.dataset import Dataset, DatasetPipeline
from windrow.dataset.logical_plan import LogicalPlan, check_columns, make_parent, rearranged_plan
from windrow.dataset.sources.packed_sources import PackedSources, find_packed
from windrow.pipeline.exchange.layouts import CountedBlocks, WholeBlocks
from windrow.pipeline.plan.mixed_source import MixedSource, mean_window_rows
from windrow.pipeline.plan.mixture import Mixture, MixtureUnit, WhenExhausted, count_round_rows
from windrow.pipeline.plan.output_bytes import stored_row_bytes
from windrow.pipeline.plan.shares import Shares, make_shares
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.pipeline.tasks.row_measure import check_measurable


def mixture(
    sources: Mapping[str, DatasetPipeline],
    shares: Mapping[str, float] | Shares,
    *,
    seed: int,
    unit: MixtureUnit = "rows",
    when_exhausted: WhenExhausted = "stop",
    source_column: str | None = None,
    length_column: str | None = None,
) -> DatasetPipeline:
    """Return a pipeline of several pipelines, each of which has a share of the rows.

    Every source is a stream of its own: its windows, passes and orders are what they are without the mixture, whatever
    the other sources and the shares are. The mixture says only where the next row comes from. In every beginning of
    the mixture, a source has less than one row more or less than its share of it since shares last changed, and the
    rows of a source keep their order. The choice that this leaves is made at random, by ``seed``.

    Documents of all sources can be packed: ``mixture(...).pack(seq_len, columns)`` lays them end to end in the order of
    the mixture, into sequences that join documents of several sources. Or sources `pack`, all of them into sequences of
    one length, which are then the rows of the mixture. Each holds documents of one source, and the k-th sequence of a
    source is that of its own pipeline.

    The mixture has one epoch. It is split, sharded over meshes, read and resumed as any pipeline; transforms that
    preserve rows can follow.

    Parameters
    ----------
    sources
        By name, pipelines with the same columns, in any order. Each has its own ``window``, ``repeat`` and shuffle.
        Row counts that are not known are counted first, and so are the tokens of documents that are packed.
    shares
        By name, numbers of 0 or more, of which only the proportions count; or `Shares` that follow a schedule.
    seed
        Any integer. It chooses among the orders of sources that keep to the shares; the orders of rows within sources
        come from their own seeds.
    unit
        What shares are shares of: ``"rows"``, or ``"tokens"`` of documents that are packed. A source then never has
        more tokens above its share than its longest document has, nor more below it than the longest of all. Sources
        that pack have equal numbers of tokens in all rows, so both give the same mixture.
    when_exhausted
        What becomes of a source that has a share, but no rows left: ``"stop"`` ends the mixture there; ``"drop"`` goes
        on without it, the other shares in proportion; ``"repeat"`` begins its next pass, whatever its ``repeat`` says.
    source_column
        Name of a column to add, which holds the name of each row's source, also where rows are sequences. Where these
        join documents of several sources, it holds the place of each token's source among ``sources``, as int32.
    length_column
        A column of numbers, lists, text or binary values, that is read of all rows first. `Balance` by this column then
        divides the rows of all sources together, and ``token_budget=`` and ``group_by_length=`` can be used. Each
        process keeps four bytes a row. `pack` behind the mixture needs no other reading of this column. Not for sources
        that pack, whose rows all have as many tokens.

    Raises
    ------
    PlanError
        If an argument is invalid, a source has no rows, sorts, or draws random numbers in a transform; or if sources
        differ in whether and to what length they pack.
    SourceError
        If columns or types do not unify; the message names the column.

    Examples
    --------
    >>> import windrow
    >>> web = windrow.range(600).repeat().random_shuffle_each_window(seed=1)
    >>> books = windrow.range(20).repeat().random_shuffle_each_window(seed=2)
    >>> pipe = windrow.mixture({"web": web, "books": books}, {"web": 0.75, "books": 0.25}, seed=7, source_column="of")
    >>> batch = next(iter(pipe.iter_batches(batch_size=400)))
    >>> int((batch["of"] == "web").sum()), int((batch["of"] == "books").sum())
    (300, 100)

    Documents of two sources, packed into sequences of 4 tokens, of which one in four is code:

    >>> code = windrow.from_items([{"tokens": [1] * size} for size in (3, 7, 5)]).repeat()
    >>> text = windrow.from_items([{"tokens": [2] * size} for size in (9, 2, 4)]).repeat()
    >>> shares = {"code": 1, "text": 3}
    >>> sources = {"code": code.pack(4, "tokens"), "text": text.pack(4, "tokens")}
    >>> pipe = windrow.mixture(sources, shares, seed=7, unit="tokens")
    >>> batch = next(iter(pipe.iter_batches(batch_size=8)))
    >>> batch["tokens"].shape, int((batch["tokens"] == 1).all(axis=1).sum())
    ((8, 4), 2)

    The same shares of tokens in sequences that join documents of both:

    >>> pipe = windrow.mixture({"code": code, "text": text}, shares, seed=7, unit="tokens").pack(4, "tokens")
    >>> batch = next(iter(pipe.iter_batches(batch_size=64)))
    >>> batch["tokens"].shape, float((batch["tokens"] == 1).mean().round(2))
    ((64, 4), 0.25)
    """
    plans = _check_sources(sources)
    schedule = make_shares(shares)
    unknown = [name for name in schedule.names if name not in plans]
    if unknown:
        raise PlanError(f"mixture: the shares name {unknown}, and the sources are {list(plans)}")
    if when_exhausted not in get_args(WhenExhausted):
        raise PlanError(f"when_exhausted={when_exhausted!r} must be 'stop', 'repeat' or 'drop'")
    chosen = check_seed(seed)
    if source_column is not None and (not isinstance(source_column, str) or not source_column):
        raise PlanError(f"source_column={source_column!r} must be the name of the column to add, or None")
    packed = find_packed(plans, source_column)
    if length_column is not None:
        _check_length_column(length_column, packed)
    if unit not in get_args(MixtureUnit):
        raise PlanError(f"mixture(unit={unit!r}) must be 'rows' or 'tokens'")
    read = plans if packed is None else packed.documents
    if source_column is not None and packed is None:
        read = {name: _with_source_column(name, plan, source_column) for name, plan in plans.items()}
    call = f"mixture(seed={chosen}, when_exhausted={when_exhausted!r}"
    call += "".join(
        f", {name}={value!r}"
        for name, value in (("unit", unit), ("length_column", length_column))
        if value not in ("rows", None)
    )
    call += ")"
    check_columns(list(read.values()), call)
    joined = rearranged_plan(list(read.values()), CountedBlocks() if packed is None else WholeBlocks(), call)
    source: Any = joined.source
    mixed, first = [], 0
    for (name, plan), parent in zip(plans.items(), source.parents, strict=True):
        # of the parent that the blocks are made of, so that rows are counted once
        rows = parent.row_counts if packed is None else packed.count_tokens(name)
        if not rows.sum():
            raise PlanError(f"mixture: the source {name!r} has no rows: leave it out")
        passes = None if when_exhausted == "repeat" else plan.epochs
        lengths = None if length_column is None else _measure(name, plan, rows, length_column)
        mixed.append(
            MixedSource(
                name=name,
                blocks=plan.source.blocks,
                rows=rows,
                first_block=first,
                cut=plan.window_cut,
                seed=plan.seed,
                shuffles_blocks=plan.shuffles_blocks,
                passes=passes,
                digest=plan.stream_digest(),
                seq_len=None if packed is None else packed.seq_len,
                lengths=lengths,
            )
        )
        first += len(rows)
    row_bytes = stored_row_bytes(joined.source) if packed is None else packed.row_bytes(source.schema)
    round_rows = count_round_rows(row_bytes, sum(map(mean_window_rows, mixed)))
    by_rows = schedule if packed is None else schedule.in_rows(packed.seq_len)
    variant = repr((list(plans) if source_column else None, packed))
    return DatasetPipeline(
        replace(
            joined,
            source=replace(source, text=_describe(plans, schedule, call), variant=variant),
            packing=None if packed is None else packed.packing,
            after=() if packed is None else packed.after,
            mixture=Mixture(
                tuple(mixed),
                by_rows,
                when_exhausted,
                chosen,
                round_rows,
                length_column,
                unit if packed is None else "rows",
                source_column,
            ),
        )
    )


def _describe(plans: Mapping[str, LogicalPlan], schedule: Shares, call: str) -> str:
    """How the mixture is printed: its shares, and below the pipeline of each source."""
    sources = [f"{name}: {plan}".replace("\n", "\n  ") for name, plan in plans.items()]
    return "\n  ".join([f"{call} of {schedule}", *sources])


def _check_length_column(column: Any, packed: PackedSources | None) -> None:
    if not isinstance(column, str) or not column:
        raise PlanError(f"mixture(length_column={column!r}) must be the name of a column, or None")
    if packed is not None:
        raise PlanError(
            f"mixture(length_column={column!r}): the sources pack, so that all rows have {packed.seq_len:,} tokens: "
            "leave it out"
        )


def _measure(name: str, plan: LogicalPlan, rows: NDArray[np.int64], column: str) -> NDArray[np.float32]:
    """(rows,) what the rows of a source measure, which has so many in each block."""
    parent = make_parent(plan)
    check_measurable(parent.schema, column, f"mixture, source {name!r}: ")
    found = parent.measure_rows(column, "mixture")
    if [len(each) for each in found] != rows.tolist():
        raise PlanError(
            f"mixture: the transforms of the source {name!r} make other rows each time: a mixture needs the same ones"
        )
    return np.concatenate([np.zeros(0, np.float32), *found])


def _check_sources(sources: Any) -> dict[str, LogicalPlan]:
    if not isinstance(sources, Mapping) or not sources:
        raise PlanError(f"mixture({type(sources).__qualname__}): give a dict from names to pipelines")
    plans = {}
    for name, pipeline in sources.items():
        if not isinstance(name, str) or not name:
            raise PlanError(f"mixture: the name {name!r} of a source must be a string")
        if isinstance(pipeline, Dataset):
            raise PlanError(
                f"mixture: the source {name!r} is a Dataset: say how it is read, as in "
                "ds.repeat().random_shuffle_each_window(seed=7)"
            )
        if not isinstance(pipeline, DatasetPipeline):
            raise PlanError(f"mixture: the source {name!r} is no pipeline but {type(pipeline).__qualname__}")
        plan = pipeline._plan
        if plan.mixture is not None:
            raise PlanError(
                f"mixture: the source {name!r} is a mixture itself: name its sources here instead"
            )
        if plan.sort is not None:
            raise PlanError(f"mixture: the source {name!r} has {plan.sort}, which mixtures do not support")
        if any(stage.rng for stage in plan.maps):
            raise PlanError(
                f"mixture: the source {name!r} draws random numbers in a transform, which would be the same in each of "
                "its passes: apply it to the mixture"
            )
        if plan.options.on_error == "skip":
            raise PlanError(
                f"mixture: the source {name!r} has on_error='skip', and its rows cannot be counted first"
            )
        plans[name] = plan
    return plans


def _with_source_column(name: str, plan: LogicalPlan, column: str) -> LogicalPlan:
    if column in make_parent(plan).schema.names:
        raise PlanError(f"mixture(source_column={column!r}): the source {name!r} has this column already")
    return replace(
        plan, before=(*plan.maps, MapBatches(partial(_add_name, column, name), "pyarrow")), after=()
    )


def _add_name(column: str, name: str, table: pa.Table) -> pa.Table:
    names = pa.DictionaryArray.from_arrays(np.zeros(table.num_rows, np.int32), [name])
    return table.append_column(column, names.cast(pa.string()))
