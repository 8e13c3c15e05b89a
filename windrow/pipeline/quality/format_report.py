"""The text of a `ShuffleReport`."""

from __future__ import annotations

from windrow.core.terminal_text import escape_controls
from windrow.pipeline.quality.shuffle_report import ShuffleReport

__all__ = ["format_report"]

_HEAD = ("", "this order", "full shuffle", "ratio")


def format_report(report: ShuffleReport) -> str:
    """Format a report as text: what was measured, a table, and the verdict."""
    lines = [
        _format_head(report),
        *_format_table(_list_measures(report)),
        f"sample    {_format_sample(report)}",
    ]
    lines += [f"note      {note}" for note in report.notes]
    return "\n".join(map(escape_controls, [*lines, f"verdict   {report.verdict}"]))


def _format_head(report: ShuffleReport) -> str:
    windows = "1 window" if report.windows == 1 else f"{report.windows:,} windows"
    return (
        f"{report.rows:,} rows in {report.groups:,} {report.group_kind}, {windows}, batches of {report.batch_size:,}: "
        f"{report.shuffle} shuffled"
    )


def _list_measures(report: ShuffleReport) -> list[tuple[str, str, str, str]]:
    groups, full = report.groups_per_batch, report.groups_per_batch_full
    rows = [
        _row("displacement, mean", report.displacement.mean, report.displacement_full.mean),
        _row(f"{report.group_kind} a batch, mean", groups.mean, full.mean),
        _row("  5 % to 95 % of batches", None, None, _span(groups.quantiles), _span(full.quantiles)),
    ]
    if report.pairs_met_again is not None and report.pairs_met_again_full is not None:
        rows.append(_row("pairs that meet again", report.pairs_met_again, report.pairs_met_again_full))
    return [
        *rows,
        _row("entropy of neighbours, bits", report.entropy, report.entropy_full),
        _row("distance of neighbours", report.neighbour_distance, report.neighbour_distance_full),
    ]


def _row(
    name: str, observed: float | None, full: float | None, left: str = "", right: str = ""
) -> tuple[str, str, str, str]:
    if observed is None or full is None:
        return name, left, right, ""
    ratio = f"{observed / full:.3g}" if full else ""
    return name, f"{observed:.4g}", f"{full:.4g}", ratio


def _span(quantiles: tuple[float, ...]) -> str:
    return f"{quantiles[1]:.4g} to {quantiles[-2]:.4g}"


def _format_table(rows: list[tuple[str, str, str, str]]) -> list[str]:
    table = [_HEAD, *rows]
    widths = [max(len(row[at]) for row in table) for at in range(len(_HEAD))]
    return [
        "  ".join([row[0].ljust(widths[0]), *(row[at].rjust(widths[at]) for at in (1, 2, 3))]).rstrip()
        for row in table
    ]


def _format_sample(report: ShuffleReport) -> str:
    if report.whole_epoch:
        return f"all {report.sampled_batches:,} full batches of epoch {report.epoch}"
    batches = max(1, report.rows // report.batch_size)
    return (
        f"{report.sampled_batches:,} of {batches:,} batches of epoch {report.epoch}, evenly spread: "
        f"{report.sampled_rows:,} rows"
    )
