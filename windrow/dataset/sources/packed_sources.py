"""The sources of a mixture that pack documents: what they have in common, and the documents that are read of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.errors import PlanError
from windrow.dataset.logical_plan import LogicalPlan, make_parent
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.pipeline.tasks.mixed_packing import MixedPacking, count_tokens, list_documents, name_sources
from windrow.pipeline.tasks.sequence_packing import SequencePacking


@dataclass(frozen=True)
class PackedSources:
    """The plans of all sources up to `pack`, and how each packs."""

    plans: Mapping[str, LogicalPlan]
    packings: Mapping[str, SequencePacking]
    source_column: str | None

    def __repr__(self) -> str:
        return f"{list(self.packings.values())} {self.source_column!r}"

    @property
    def seq_len(self) -> int:
        """Tokens of a sequence."""
        return self.packing.seq_len

    @property
    def packing(self) -> MixedPacking:
        """How the documents of all sources are packed."""
        first = next(iter(self.packings.values()))
        added = () if self.source_column is None else (self.source_column,)
        return MixedPacking(first.seq_len, (*first.columns, *added))

    @property
    def after(self) -> tuple[MapBatches, ...]:
        """The transforms of sequences."""
        return () if self.source_column is None else (name_sources(list(self.plans), self.source_column),)

    @property
    def documents(self) -> dict[str, LogicalPlan]:
        """The plans of the documents, as they are read."""
        return {
            name: replace(
                plan, before=(*plan.before, list_documents(self.packings[name], number, self.source_column))
            )
            for number, (name, plan) in enumerate(self.plans.items())
        }

    def count_tokens(self, name: str) -> NDArray[np.int64]:
        """(blocks,) the tokens of each block of a source, counted by reading."""
        plan = self.plans[name]
        counts = make_parent(
            replace(plan, before=(*plan.before, count_tokens(self.packings[name])))
        ).row_counts
        if counts.sum() < self.seq_len:
            raise PlanError(
                f"mixture: the source {name!r} has {counts.sum():,} tokens, too few for a sequence of "
                f"{self.seq_len:,}: leave it out, or pack shorter sequences"
            )
        return counts

    def row_bytes(self, schema: pa.Schema) -> int:
        """The bytes of a sequence, given the schema of documents."""
        return self.seq_len * self.packing.token_bytes(schema)


def find_packed(plans: Mapping[str, LogicalPlan], source_column: str | None) -> PackedSources | None:
    """What becomes of sources that pack; None if no source does.

    Raises
    ------
    PlanError
        If only some do, or into sequences that cannot be mixed.
    """
    packings = {name: plan.packing for name, plan in plans.items() if plan.packing is not None}
    if not packings:
        return None
    first, packing = next(iter(packings.items()))
    for name, plan in plans.items():
        other = plan.packing
        if other is None:
            raise PlanError(
                f"mixture: the source {first!r} packs, and {name!r} does not: end all sources with "
                f"pack({packing.seq_len}, ...), or none"
            )
        if not other.split_documents or other.boundaries:
            if other.split_documents:
                given, instead = "boundaries=True", "call pack(boundaries=True) behind the mixture"
            else:
                given = "split_documents=False"
                instead = "write the packed sequences of each source first, and mix the files"
            raise PlanError(
                f"mixture: {given} of the source {name!r} is not for mixtures: {instead}, or pack documents end to end "
                "and tell them apart by a column of numbers"
            )
        if other.seq_len != packing.seq_len:
            raise PlanError(
                f"mixture: sequences have {packing.seq_len:,} tokens in source {first!r} and {other.seq_len:,} in "
                f"{name!r}: pack all sources into sequences of one length"
            )
        if set(other.columns) != set(packing.columns):
            raise PlanError(
                f"mixture: {packing} of source {first!r} and {other} of source {name!r} have other columns: give "
                "pack() the same in all sources"
            )
        if plan.after:
            raise PlanError(
                f"mixture: {plan.after[0].name} of the source {name!r} comes after pack(): apply it to the mixture"
            )
        if source_column in other.columns:
            raise PlanError(
                f"mixture(source_column={source_column!r}): the source {name!r} has this column already"
            )
    found = {name: replace(plan, packing=None) for name, plan in plans.items()}
    return PackedSources(found, packings, source_column)
