"""What notebooks show: HTML of datasets, pipelines, explanations, statistics and timelines, with every text escaped."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windrow
from windrow.core import notebook_html
from windrow.pipeline.statistics.phases import Span
from windrow.pipeline.timeline import draw

EVIL = "<script>alert('x')</script>&\x1b[31m$\\x$"
VOID = {"meta", "img", "br"}


class Page(HTMLParser):
    """The tags, and the texts of cells, items and paragraphs; fails if tags are not closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self._open.append(tag)
        self.texts.append("")

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style" and data.strip():
            self.texts.append(data.strip())

    def after(self, text: str) -> str:
        return [each for each in self.texts if each][[each for each in self.texts if each].index(text) + 1]


def page(value: Any) -> Page:
    return Page(value._repr_html_())


@pytest.fixture
def pipe() -> windrow.DatasetPipeline:
    table = pa.table({EVIL: np.arange(40), "x": np.arange(40) / 2})
    ds = windrow.from_arrow(table, target_block_bytes=64).options(executor="threads", progress=False)
    return ds.window(blocks_per_window=3).repeat(2).random_shuffle_each_window(seed=7)


def test_datasets_and_pipelines_show_steps_and_columns(pipe: windrow.DatasetPipeline) -> None:
    shown = page(pipe)
    assert shown.texts.count(EVIL.replace("\x1b", "\\x1b")) == 1
    assert shown.after("x") == "double"
    assert shown.after(".window(blocks_per_window=3)") == ".repeat(2)"
    assert "script" not in shown.tags
    assert page(windrow.range(3)).texts.count("Dataset") == 1


def test_columns_of_transforms_are_not_read_for() -> None:
    def fail(batch: Any) -> Any:
        raise ZeroDivisionError

    mapped = windrow.range(3).map_batches(fail)
    assert "column as stored" in page(mapped).texts
    assert any("schema() has those of the result" in text for text in page(mapped.repeat(1)).texts)
    for derived in (mapped.sort("id"), mapped.distinct(), mapped.union(mapped)):
        assert "Columns: schema() reads a block to find them." in page(derived).texts
    assert page(windrow.range(3).sort("id")).after("id") == "int64"


def test_wide_schemas_and_long_types_are_cut() -> None:
    wide = windrow.from_arrow(pa.table({f"c{at}": [1] for at in range(60)}))
    assert "and 10 more columns" in page(wide).texts
    nested = pa.struct([(f"field{at}", pa.int64()) for at in range(100)])
    (kind,) = [
        text
        for text in page(windrow.from_arrow(pa.table({"x": pa.nulls(1, nested)}))).texts
        if "struct" in text
    ]
    assert len(kind) == 300
    assert kind.endswith("…")


def test_explanations_show_what_is_printed(pipe: windrow.DatasetPipeline) -> None:
    explanation = pipe.options(cache="memory").explain(2, batch_size=4)
    shown = page(explanation)
    printed = str(explanation).splitlines()
    assert shown.texts.count(printed[0]) == 1
    labels = {line.split()[0] for line in printed[1:]} - {"warning", "memory"}
    assert {"rows", "windows", "shards", "tasks", "cache"} <= labels
    assert labels <= set(shown.texts)
    for line in printed[1:]:
        label, text = line[:8].strip(), line[9:]
        if label == "warning":
            assert f"Warning: {text}" in shown.texts
        elif label != "memory":
            assert shown.after(label) == text
    (memory,) = [line for line in printed if line.startswith("memory")]
    assert shown.after("together") in memory
    assert f"limit {shown.after('limit')}" in memory
    for part in ("runs", "tasks", "cache"):
        assert f"{part} {Page(shown_table(explanation)).after(part)}" in memory


def shown_table(explanation: windrow.Explanation) -> str:
    """The table of memory."""
    return "<table>" + explanation._repr_html_().split("<table>")[2].split("</table>")[0] + "</table>"


def test_statistics_show_what_is_printed(pipe: windrow.DatasetPipeline) -> None:
    with pipe.iterator() as shard:
        for _ in shard.iter_batches(batch_size=7):
            pass
        stats = shard.stats()
    shown, printed = page(stats), str(stats).splitlines()
    assert printed[0] in shown.texts
    assert stats.bottleneck.sentence in shown.texts
    assert (
        shown.after("rates")
        == next(line for line in printed if line.startswith("rates")).removeprefix("rates").strip()
    )
    head = next(line for line in printed if line.startswith("trainer ")).split("  ")
    assert {name.strip() for name in head if name.strip()} <= set(shown.texts)
    unread = pipe.iterator().stats()
    assert "table" in page(unread).tags


def test_timelines_are_drawn(pipe: windrow.DatasetPipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    for _ in pipe.iter_batches(batch_size=4):
        pass
    timeline = pipe.timeline()
    html = timeline._repr_html_()
    assert html.count("<svg") == 1
    assert "<?xml" not in html
    assert "<!DOCTYPE" not in html
    assert str(timeline) in html
    assert len(html) < 200_000
    Page(html)
    monkeypatch.setattr(draw, "_MAX_SVG_SPANS", 3)
    assert 'src="data:image/png;base64,iVBOR' in timeline._repr_html_()


def test_names_in_timelines_are_escaped() -> None:
    pytest.importorskip("matplotlib")
    spans = (Span("map", 0, 0, 0.0, 1.0, EVIL, source=EVIL), Span("work", 0, 0, 1.0, 2.0, "shard 0"))
    assert "<script" not in windrow.Timeline(spans)._repr_html_()


def test_timelines_without_matplotlib_are_sentences(
    pipe: windrow.DatasetPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in pipe.iter_batches(batch_size=4):
        pass
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    (text,) = [text for text in page(pipe.timeline()).texts if text]
    assert text.startswith(str(pipe.timeline()))
    assert 'pip install "windrow[plot]"' in text


def test_pages_are_small_and_have_no_colours_of_their_own(pipe: windrow.DatasetPipeline) -> None:
    values: tuple[Any, ...] = (pipe, pipe.explain(2), pipe.iterator().stats())
    for value in values:
        assert len(value._repr_html_()) < 6_000
    assert "#" not in notebook_html._STYLE
    assert "white;" not in notebook_html._STYLE
    # a long name without spaces does not run over the next column
    assert "overflow-wrap: break-word" in notebook_html._STYLE


def test_nothing_is_read(tmp_path: Path) -> None:
    windrow.range(10).write_parquet(tmp_path / "rows")
    ds = windrow.read_parquet(tmp_path / "rows")
    for file in (tmp_path / "rows").glob("*.parquet"):
        file.unlink()
    assert page(ds).after("id") == "int64"
    assert page(ds.repeat(1)).after("id") == "int64"
    assert page(ds.sort("id")).after("id") == "int64"
