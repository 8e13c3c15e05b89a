"""The results of one part of the comparison: one kind of data at one batch size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.config import BenchConfig
from bench.facts import Facts
from bench.peers import PEERS
from bench.report import describe_breaches, describe_run
from bench.results import SystemResult
from bench.rivals.targets import Target, TargetResult, check_targets
from bench.summary import Summary, summarize

__all__ = ["Files", "Part", "find_scan_rate"]


@dataclass(frozen=True)
class Files:
    """Parquet files, and facts about them."""

    paths: Sequence[str]
    facts: Facts


@dataclass(frozen=True)
class Part:
    """Results of the systems that read all rows, and of those that read the sample.

    ``scan_rate`` is what the raw scan of the same data reached, in bytes per second, if it ran.
    """

    title: str
    config: BenchConfig
    whole: Facts
    results: Sequence[SystemResult]
    targets: Sequence[Target]
    scan_rate: float | None
    sample: Facts | None = None
    by_row: Sequence[SystemResult] = ()

    def summaries(self) -> dict[str, Summary]:
        """Summaries of all systems that did not fail."""
        rate = self.scan_rate
        return {
            result.system: summarize(result, facts, facts.decoded_bytes / rate if rate else None)
            for result, facts in self._with_facts()
            if result.error is None
        }

    def check_targets(self) -> list[TargetResult]:
        """Results of the targets for which the systems were measured."""
        return check_targets(self.targets, self.summaries())

    def breaches(self) -> list[str]:
        """Failures of all systems, and breaches of windrow; delivery of rivals is shown in the table only."""
        return [
            breach
            for result, facts in self._with_facts()
            if result.error is not None or not PEERS[result.system].rival
            for breach in describe_breaches([result], facts)
        ]

    def describe(self, machine: dict[str, Any]) -> dict[str, Any]:
        """Plain values for JSON."""
        summaries = list(self.summaries().values())
        results = [*self.results, *self.by_row]
        description = describe_run(self.config, results, summaries, self.whole, machine, self.breaches())
        return {
            "part": self.title,
            **description,
            "sample_rows": self.sample.rows if self.sample is not None else None,
        }

    def _with_facts(self) -> list[tuple[SystemResult, Facts]]:
        on_sample = [] if self.sample is None else [(result, self.sample) for result in self.by_row]
        return [*((result, self.whole) for result in self.results), *on_sample]


def find_scan_rate(results: Sequence[SystemResult], facts: Facts) -> float | None:
    """Bytes per second of the raw scan, if it ran."""
    scans = [one for one in results if one.system == "scan" and one.error is None]
    return facts.decoded_bytes / scans[0].median_seconds() if scans else None
