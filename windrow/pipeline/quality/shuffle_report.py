"""`ShuffleReport`: how close the order of an epoch comes to a full shuffle, as a value."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from windrow.core.terminal_text import align_columns, escape_controls, format_count
from windrow.pipeline.quality.measures import OrderMeasures
from windrow.pipeline.quality.pictures import plot_reports

# a ratio from which a measure counts as that of a full shuffle
_NEAR = 0.95
# pairs of rows that meet so much more often than by chance correlate successive epochs
_OFTEN = 1.5
_HEAD = ("", "this order", "full shuffle", "ratio")


@dataclass(frozen=True)
class ShuffleReport(OrderMeasures):
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

    @property
    def verdict(self) -> str:
        """One sentence: what the order lacks, and how to change that."""
        if self.shuffle == "nothing":
            return "the rows are delivered in stored order: add random_shuffle_each_window()"
        if self.shuffle == "blocks":
            return "only blocks are shuffled: use random_shuffle_each_window() to mix their rows"
        if self.groups_ratio < _NEAR:
            share = f"{100 * self.groups_ratio:.2g} %"
            return (
                f"a batch draws on {share} of the {self.group_kind} of a full shuffle: use larger windows or smaller "
                "blocks (target_block_bytes), or rewrite the data once with windrow premix"
            )
        if self.recurrence is not None and self.recurrence > _OFTEN:
            return (
                f"batches mix well, but pairs of rows meet again {self.recurrence:.3g} times as often as by chance: "
                "use larger windows or smaller blocks to make epochs more different"
            )
        return "the order is as good as a full shuffle"

    def __str__(self) -> str:
        return _format_report(self)

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
        plot_reports((self, *beside), path)


def _format_report(report: ShuffleReport) -> str:
    """Format a report as text: what was measured, a table, and the verdict."""
    lines = [
        _format_head(report),
        *align_columns([_HEAD, *_list_measures(report)], right=(1, 2, 3)),
        f"sample    {_format_sample(report)}",
    ]
    lines += [f"note      {note}" for note in report.notes]
    return "\n".join(map(escape_controls, [*lines, f"verdict   {report.verdict}"]))


def _format_head(report: ShuffleReport) -> str:
    windows = format_count(report.windows, "window")
    return (
        f"{report.rows:,} rows in {report.groups:,} {report.group_kind}, {windows}, batches of {report.batch_size:,}: "
        f"{report.shuffle} shuffled"
    )


def _list_measures(report: ShuffleReport) -> list[tuple[str, str, str, str]]:
    groups, full = report.groups_per_batch, report.groups_per_batch_full
    rows = [
        _row("displacement, mean", report.displacement.mean, report.displacement_full.mean),
        _row(f"{report.group_kind} a batch, mean", groups.mean, full.mean),
        ("  5 % to 95 % of batches", _span(groups.quantiles), _span(full.quantiles), ""),
    ]
    if report.pairs_met_again is not None and report.pairs_met_again_full is not None:
        rows.append(_row("pairs that meet again", report.pairs_met_again, report.pairs_met_again_full))
    return [
        *rows,
        _row("entropy of neighbours, bits", report.entropy, report.entropy_full),
        _row("distance of neighbours", report.neighbour_distance, report.neighbour_distance_full),
    ]


def _row(name: str, observed: float, full: float) -> tuple[str, str, str, str]:
    ratio = f"{observed / full:.3g}" if full else ""
    return name, f"{observed:.4g}", f"{full:.4g}", ratio


def _span(quantiles: tuple[float, ...]) -> str:
    return f"{quantiles[1]:.4g} to {quantiles[-2]:.4g}"


def _format_sample(report: ShuffleReport) -> str:
    if report.whole_epoch:
        return f"all {report.sampled_batches:,} full batches of epoch {report.epoch}"
    batches = max(1, report.rows // report.batch_size)
    return (
        f"{report.sampled_batches:,} of {batches:,} batches of epoch {report.epoch}, evenly spread: "
        f"{report.sampled_rows:,} rows"
    )
