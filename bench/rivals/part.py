"""What was measured at one batch size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.asked import Asked
from bench.facts import Facts
from bench.figures import Figures, sum_up
from bench.peers import PEERS
from bench.report import describe_breaches, describe_run
from bench.results import SystemResult
from bench.rivals.bars import Bar, Judgement, judge_bars

__all__ = ["Files", "Part"]


@dataclass(frozen=True)
class Files:
    """Parquet files, and what they hold."""

    paths: Sequence[str]
    facts: Facts


@dataclass(frozen=True)
class Part:
    """The results of the systems on all rows, and of those on the sample."""

    asked: Asked
    whole: Facts
    results: Sequence[SystemResult]
    bars: Sequence[Bar]
    sample: Facts | None = None
    by_row: Sequence[SystemResult] = ()

    def scan_rate(self) -> float | None:
        """Bytes a second of the raw scan, if it ran."""
        scans = [one for one in self.results if one.system == "scan" and one.error is None]
        return self.whole.decoded_bytes / scans[0].median_seconds() if scans else None

    def figures(self, scan_rate: float | None) -> dict[str, Figures]:
        """The figures of every system that did not fail."""
        return {
            result.system: sum_up(result, facts, facts.decoded_bytes / scan_rate if scan_rate else None)
            for result, facts in self._with_facts()
            if result.error is None
        }

    def judge(self, scan_rate: float | None) -> list[Judgement]:
        """The bars that could be judged."""
        return judge_bars(self.bars, self.figures(scan_rate))

    def breaches(self) -> list[str]:
        """What failed, and where ours did not do as promised; how rivals deliver is for the table."""
        return [
            breach
            for result, facts in self._with_facts()
            if result.error is not None or not PEERS[result.system].rival
            for breach in describe_breaches([result], facts)
        ]

    def describe(self, scan_rate: float | None, machine: dict[str, Any]) -> dict[str, Any]:
        """Plain values for JSON."""
        figures = list(self.figures(scan_rate).values())
        results = [*self.results, *self.by_row]
        told = describe_run(self.asked, results, figures, self.whole, machine, self.breaches())
        return {**told, "sample_rows": self.sample.rows if self.sample is not None else None}

    def _with_facts(self) -> list[tuple[SystemResult, Facts]]:
        on_sample = [] if self.sample is None else [(result, self.sample) for result in self.by_row]
        return [*((result, self.whole) for result in self.results), *on_sample]
