"""pack() behind mixture(): sequences that join the documents of all sources."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from windrow.core.errors import PlanError
from windrow.dataset.logical_plan import LogicalPlan
from windrow.pipeline.delivery.to_numpy import is_list
from windrow.pipeline.exchange.derived_source import Parent
from windrow.pipeline.exchange.rearranged_source import RearrangedSource
from windrow.pipeline.plan.mixed_source import MixedSource
from windrow.pipeline.plan.mixture import Mixture, count_round_rows
from windrow.pipeline.plan.plan_leg import plan_leg
from windrow.pipeline.tasks.mixed_packing import JoinedPacking
from windrow.pipeline.tasks.sequence_packing import SequencePacking

# from which on a 32-bit float does not hold all integers
_MAX_EXACT = 2**24


def join_documents(plan: LogicalPlan, packing: SequencePacking) -> LogicalPlan:
    """The plan of a mixture whose documents are packed, in its order."""
    mixture = plan.mixture
    assert mixture is not None, "the plan is of a mixture"
    if plan.packing is not None:
        raise PlanError(
            f"{packing} comes after mixture() of sources that pack: pack the sources, so that each sequence has "
            "documents of one, or the mixture, so that sequences join documents of all"
        )
    if plan.after:
        raise PlanError(
            f"{plan.after[0].name} stands between mixture() and {packing}: call it on each source for documents, or "
            "after pack() for sequences"
        )
    if not packing.split_documents:
        raise PlanError(
            f"{packing}: split_documents=False is not for mixtures: their documents are packed end to end; to keep "
            "them whole, write the packed sequences of each source first, and mix the files"
        )
    joined, schema = _name_sources(packing, mixture), plan.read_source.schema
    joined.check_schema(schema)
    source = plan.source
    assert isinstance(source, RearrangedSource), "a mixture rearranges the rows of its sources"
    lists = [name for name in joined.columns if is_list(schema.field(name).type)]
    if mixture.length_column in lists:
        lists = [mixture.length_column]
    sources = tuple(
        _count(each, mixture, parent, joined, lists[0])
        for each, parent in zip(mixture.sources, source.parents, strict=True)
    )
    window_tokens = sum(each.pass_tokens // each.windows_per_pass for each in sources)
    row_bytes = joined.seq_len * joined.token_bytes(schema)
    found = replace(
        mixture,
        sources=sources,
        round_rows=count_round_rows(row_bytes, window_tokens // joined.seq_len),
        length_column=None,
        joined=joined.seq_len,
    )
    if not plan_leg(found, found.start, 0, 1).stop:
        raise PlanError(
            f"{packing}: the mixture ends with fewer tokens than a sequence of {joined.seq_len:,}"
        )
    return replace(plan, packing=joined, mixture=found)


def _name_sources(packing: SequencePacking, mixture: Mixture) -> JoinedPacking:
    """The packing that also delivers the source of each token, if the mixture names sources."""
    given = {each.name: getattr(packing, each.name) for each in fields(packing)}
    column = mixture.source_column
    if column is not None and column not in packing.columns:
        given["columns"] = (*packing.columns, column)
    return JoinedPacking(**given, source_column=column, names=tuple(mixture.names))


def _count(
    own: MixedSource, mixture: Mixture, parent: Parent, packing: JoinedPacking, column: str
) -> MixedSource:
    """A source with the tokens of its documents, whose lists are read unless the mixture has measured them."""
    lengths = own.lengths
    if lengths is None or mixture.length_column != column:
        found = parent.measure_rows(column, "pack")
        if [len(each) for each in found] != own.rows.tolist():
            raise PlanError(
                f"pack: the transforms of the source {own.name!r} make other rows each time: a mixture needs the same "
                "ones"
            )
        lengths = np.concatenate([np.zeros(0, np.float32), *found])
    if len(lengths) and lengths.max() >= _MAX_EXACT:
        raise PlanError(
            f"{packing}: a document of the source {own.name!r} has {int(lengths.max()):,} tokens, and those of a "
            f"mixture have fewer than {_MAX_EXACT:,}: cut it before"
        )
    tokens: NDArray[np.int32] = lengths.astype(np.int32)
    if packing.eos is not None:
        tokens += tokens > 0
    if not tokens.any():
        raise PlanError(f"{packing}: the source {own.name!r} has no tokens: leave it out")
    return replace(own, lengths=None, tokens=tokens)
