"""`ShuffleReport`: how close the order of an epoch comes to a full shuffle, as a value."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from windrow.pipeline.quality.measures import Distribution

__all__ = ["ShuffleReport"]

# a ratio from which a measure counts as that of a full shuffle
_NEAR = 0.95
# pairs of rows that meet so much more often than by chance correlate successive epochs
_OFTEN = 1.5


@dataclass(frozen=True)
class ShuffleReport:
    """How close the order of an epoch comes to a full shuffle; ``print`` it, or read its attributes.

    Each measure has a twin for a full shuffle of the same rows: an exact law where there is one, else the same batches
    of an order in which all rows are one window. See `windrow.shuffle_report`.

    Attributes
    ----------
    rows, blocks, windows
        Of an epoch.
    groups, group_kind
        The number of ``"row groups"`` that are read; of ``"blocks"`` where the source has no row groups, or a filter
        drops rows of them.
    shuffle
        What is shuffled: ``"rows"`` of each window, ``"blocks"``, or ``"nothing"``.
    seed, epoch
        The seed, None without a shuffle, and the epoch that is measured.
    batch_size
        Rows of a batch; at most those of the dataset.
    sampled_batches, sampled_rows, whole_epoch
        What was measured, and whether that is the whole epoch.
    displacement, displacement_full
        Distance of rows from their stored place, relative to the number of rows.
    groups_per_batch, groups_per_batch_full
        Row groups that the rows of a batch come from. Of a full shuffle, the mean is that of the hypergeometric law,
        and the quantiles are those of the same batches of a full shuffle.
    pairs_met_again, pairs_met_again_full
        Share of the pairs of rows of a batch that share a batch in the next epoch too. None if there is no next epoch,
        or a batch is one row.
    entropy, entropy_full
        Entropy of the distances between neighbouring rows plus that between their row groups, in bits.
    neighbour_distance, neighbour_distance_full
        Mean distance in storage of rows that are delivered next to each other, relative to the number of rows.
    notes
        What the measures do not cover, one line each.

    Examples
    --------
    >>> import numpy as np, windrow
    >>> ds = windrow.from_numpy({"x": np.arange(10_000)}, target_block_bytes=800)
    >>> pipe = ds.window(blocks_per_window=10).repeat().random_shuffle_each_window(seed=7)
    >>> report = windrow.shuffle_report(pipe, batch_size=100)
    >>> report.windows, report.groups_per_batch.mean < 11, report.groups_per_batch_full.mean > 63
    (10, True, True)
    """

    rows: int
    blocks: int
    windows: int
    groups: int
    group_kind: Literal["row groups", "blocks"]
    shuffle: Literal["rows", "blocks", "nothing"]
    seed: int | None
    epoch: int
    batch_size: int
    sampled_batches: int
    sampled_rows: int
    whole_epoch: bool
    displacement: Distribution
    displacement_full: Distribution
    groups_per_batch: Distribution
    groups_per_batch_full: Distribution
    pairs_met_again: float | None
    pairs_met_again_full: float | None
    entropy: float
    entropy_full: float
    neighbour_distance: float
    neighbour_distance_full: float
    notes: tuple[str, ...] = ()

    @property
    def groups_ratio(self) -> float:
        """Row groups a batch relative to a full shuffle; 1 is a full shuffle."""
        return _ratio(self.groups_per_batch.mean, self.groups_per_batch_full.mean)

    @property
    def recurrence(self) -> float | None:
        """How many times more often pairs meet again than by chance; 1 is a full shuffle."""
        if self.pairs_met_again is None or self.pairs_met_again_full is None:
            return None
        return _ratio(self.pairs_met_again, self.pairs_met_again_full)

    @property
    def verdict(self) -> str:
        """One sentence: what the order lacks, and how to change that."""
        if self.shuffle == "nothing":
            return "the rows are delivered in stored order: add random_shuffle_each_window()"
        if self.shuffle == "blocks":
            return "only blocks are shuffled: use random_shuffle_each_window() to mix their rows"
        if self.groups_ratio < _NEAR:
            return (
                f"a batch draws on {_share(self.groups_ratio)} of the {self.group_kind} of a full shuffle: use larger "
                "windows or smaller blocks (target_block_bytes), or rewrite the data once with windrow premix"
            )
        if self.recurrence is not None and self.recurrence > _OFTEN:
            return (
                f"batches mix well, but pairs of rows meet again {self.recurrence:.3g} times as often as by chance: "
                "use larger windows or smaller blocks to make epochs more different"
            )
        return "the order is as good as a full shuffle"

    def __str__(self) -> str:
        from windrow.pipeline.quality.format_report import format_report

        return format_report(self)

    def to_dict(self) -> dict[str, Any]:
        """Return all attributes, the ratios and the verdict as plain values.

        >>> import windrow
        >>> windrow.shuffle_report(windrow.range(100).repeat(1)).to_dict()["shuffle"]
        'nothing'
        """
        derived = {
            "groups_ratio": self.groups_ratio,
            "recurrence": self.recurrence,
            "verdict": self.verdict,
        }
        return {**asdict(self), **derived}

    def to_json(self) -> str:
        """Return `to_dict` as JSON.

        >>> import json, windrow
        >>> json.loads(windrow.shuffle_report(windrow.range(100).repeat(1)).to_json())["rows"]
        100
        """
        return json.dumps(self.to_dict(), indent=2)

    def plot(self, path: str | os.PathLike[str], *, beside: Sequence[ShuffleReport] = ()) -> None:
        """Draw the measures next to those of a full shuffle, as a PNG or, by the path's suffix, SVG or PDF.

        Parameters
        ----------
        path
            The file to write.
        beside
            Other reports on the same data and batch size to draw into the same picture, up to five.

        Raises
        ------
        PlanError
            If matplotlib is not installed (the ``plot`` extra), the suffix is unknown, or reports differ in their rows,
            row groups or batch size.
        SourceError
            If the file cannot be written.

        Examples
        --------
        >>> import windrow
        >>> report = windrow.shuffle_report(windrow.range(1000).repeat().random_shuffle_each_window(seed=7))
        >>> report.plot("quality.png")
        """
        from windrow.pipeline.quality.plot_report import plot_reports

        plot_reports((self, *beside), path)


def _ratio(observed: float, full: float) -> float:
    return observed / full if full else 1.0


def _share(ratio: float) -> str:
    return f"{100 * ratio:.2g} %"
