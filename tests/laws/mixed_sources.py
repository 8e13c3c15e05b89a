"""The sources of random mixtures, and the rows that they must deliver by a reference implementation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from tests.laws.cases import EOS, BlocksSource, tokenize, tokens_of
from tests.laws.reference import order_epoch
from windrow.core.source import SourceIdentity
from windrow.dataset.dataset import DatasetPipeline
from windrow.dataset.logical_plan import LogicalPlan
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.pipeline.tasks.sequence_packing import SequencePacking
from windrow.shuffle.order.epoch_plan import WindowCut, plan_epoch

__all__ = ["SourceCase", "measure_documents"]

# by which the numbers of sources differ: exact as float32, halved too
_APART = 100_000


@dataclass(frozen=True)
class NumberedSource(BlocksSource):
    """Blocks whose numbers begin at ``first``."""

    first: int = 0

    @property
    def fingerprint(self) -> str:
        return f"blocks {self.sizes} from {self.first}"

    def identity(self, files: int | None = None) -> SourceIdentity:
        return replace(super().identity(files), fingerprint=self.fingerprint)

    def stored(self, block: int) -> tuple[int, int]:
        first, stop = super().stored(block)
        return self.first + first, self.first + stop

    @property
    def contents(self) -> str:
        return self.fingerprint


@dataclass(frozen=True)
class SourceCase:
    """A source: the stored rows of its blocks, and its own pipeline; ``passes`` is None without an end.

    ``packed`` is the length of the sequences that rows are packed into as documents; 0: they are not.
    """

    sizes: tuple[int, ...]
    cut: WindowCut = WindowCut()
    seed: int | None = 7
    passes: int | None = None
    shuffles_blocks: bool = False
    packed: int = 0
    has_eos: bool = True

    def source(self, number: int) -> NumberedSource:
        return NumberedSource(self.sizes, first=(number + 1) * _APART)

    def pipeline(self, number: int) -> DatasetPipeline:
        plan = LogicalPlan(
            self.source(number),
            cut=self.cut,
            epochs=self.passes,
            seed=self.seed,
            shuffles_blocks=self.shuffles_blocks and self.seed is not None,
        )
        if self.packed:
            eos = {"x": EOS, "half": EOS / 2} if self.has_eos else None
            packing = SequencePacking(self.packed, ["x", "half", "flag"], eos)
            plan = replace(plan, before=(MapBatches(tokenize),), packing=packing)
        return DatasetPipeline(plan)

    def pass_rows(self, number: int) -> int:
        """Rows of a pass, or sequences."""
        return len(_order_pass(self, number, 0)) if self.packed else sum(self.sizes)

    def rows(self, number: int, first: int, count: int) -> list[Any]:
        """Some rows of the order in which the source's own pipeline delivers them, pass after pass."""
        size = self.pass_rows(number)
        passes = range(first // size, -(-(first + count) // size))
        found = [row for one in passes for row in self._pass(number, one)]
        return found[first - passes.start * size :][:count] if passes else []

    def windows(self, number: int, first: int, count: int) -> list[tuple[int, ...]]:
        """The pass and the window of each of these rows; of a sequence that several windows hold, all of these."""
        source, size = self.source(number), self.pass_rows(number)
        found: list[tuple[int, ...]] = []
        one = first // size
        skipped = first - one * size
        while len(found) < skipped + count:
            plan = plan_epoch(
                source.blocks,
                cut=self.cut,
                seed=self.seed,
                epoch=one,
                sorts_windows=not (self.shuffles_blocks and self.seed is not None),
            )
            tokens: list[int] = []
            for window in range(plan.windows):
                for block in plan.window_blocks(window).tolist():
                    tokens += [window] * self._tokens_of(range(*source.stored(block)))
            length = max(1, self.packed)
            found += [(one, *sorted(set(tokens[at : at + length]))) for at in range(0, size * length, length)]
            one += 1
        return found[skipped : skipped + count]

    def _tokens_of(self, rows: range) -> int:
        """The tokens of some rows, or these."""
        if not self.packed:
            return len(rows)
        return sum(len(found) + self.has_eos for x in rows if (found := tokens_of(x)))

    def _pass(self, number: int, one: int) -> tuple[Any, ...]:
        return _order_pass(self, number, one)


@lru_cache(maxsize=4096)
def _order_pass(case: SourceCase, number: int, one: int) -> tuple[Any, ...]:
    source = case.source(number)
    found = order_epoch(
        source.blocks,
        [list(range(*source.stored(block))) for block in range(len(case.sizes))],
        cut=case.cut,
        seed=case.seed,
        epoch=one,
        shuffles_blocks=case.shuffles_blocks and case.seed is not None,
    )
    if not case.packed:
        return tuple(found)
    end = [EOS] if case.has_eos else []
    tokens = [token for x in found if (document := tokens_of(x)) for token in (*document, *end)]
    return tuple(tokens[at : at + case.packed] for at in range(0, len(tokens) - case.packed + 1, case.packed))


def measure_documents(sequence: list[int]) -> list[int]:
    """The tokens of each part of a document in a sequence."""
    sizes, latest = [0], None
    for token in sequence:
        if sizes[-1] and latest is not None and token != EOS and token // 8 != latest:
            sizes.append(0)
        sizes[-1] += 1
        if token == EOS:
            sizes.append(0)
        latest = None if token == EOS else token // 8
    return [size for size in sizes if size]
