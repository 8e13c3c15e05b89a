"""mixture() of sources that pack: what it takes and refuses, and what becomes of columns, names and counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
from windrow import DatasetPipeline, PlanError, Shares, SourceError, StateError, TransformError
from windrow.pipeline.plan import leg as planning

LENGTHS = (3, 0, 7, 1, 5, 12, 2, 4)
INT32 = pa.int32()


@pytest.fixture(autouse=True)
def short_legs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan few windows at a time, which takes less time."""
    monkeypatch.setattr(planning, "_LEG_WORK", 50)
    monkeypatch.setattr(planning, "_LEG_WINDOWS", 1)


def documents(value: int, kind: pa.DataType = INT32, lengths: Sequence[int] = LENGTHS) -> windrow.Dataset:
    """Documents whose tokens are ``value`` and their place in it; ``of`` is the document's number."""
    tokens = [[value + at for at in range(length)] for length in lengths]
    table = pa.table(
        {"tokens": pa.array(tokens, pa.list_(kind)), "of": pa.array(range(len(tokens)), pa.int16())}
    )
    return windrow.from_arrow(table, target_block_bytes=60)


def packed(
    value: int, seed: int | None = 1, times: int | None = None, seq_len: int = 4, **given: Any
) -> DatasetPipeline:
    options = {"columns": ["tokens", "of"], "eos": 0, **given}
    pipe = documents(value).window(blocks_per_window=2).repeat(times)
    return (pipe if seed is None else pipe.random_shuffle_each_window(seed=seed)).pack(seq_len, **options)


def mixed(shares: Any = None, **options: Any) -> DatasetPipeline:
    sources = {"web": packed(100), "code": packed(200, 2)}
    return windrow.mixture(sources, shares or {"web": 3, "code": 1}, seed=7, **options)


def stream(pipe: DatasetPipeline, count: int) -> list[list[int]]:
    """The first sequences of a pipeline, over its passes."""
    found: list[list[int]] = []
    with pipe.iterator() as shard:
        for epoch in shard.iter_epochs():
            for batch in epoch.iter_batches(batch_size=1):
                found.append(batch["tokens"][0].tolist())
                if len(found) == count:
                    return found
    return found


def head(pipe: DatasetPipeline, steps: int, batch_size: int) -> list[dict[str, Any]]:
    return [batch for _, batch in zip(range(steps), pipe.iter_batches(batch_size=batch_size), strict=False)]


Build = Callable[[], Any]
WRONG: Any = "bytes"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: windrow.mixture({"a": packed(1), "b": packed(2, seq_len=5)}, {"a": 1}, seed=7),
            "4 tokens in source 'a' and 5 in 'b'",
        ),
        (
            lambda: windrow.mixture({"a": packed(1), "b": documents(2).repeat()}, {"a": 1}, seed=7),
            "'a' packs, and 'b' does not",
        ),
        (
            lambda: windrow.mixture({"a": packed(1), "b": packed(2, columns="tokens")}, {"a": 1}, seed=7),
            "have other columns",
        ),
        (
            lambda: windrow.mixture({"a": packed(1).map_batches(lambda batch: batch)}, {"a": 1}, seed=7),
            "comes after pack",
        ),
        (lambda: windrow.mixture({"a": packed(1, seq_len=50)}, {"a": 1}, seed=7), "41 tokens, too few"),
        (lambda: mixed(source_column="of"), "has this column already"),
        (lambda: mixed(source_column=""), "name of the column"),
        (lambda: mixed(unit=WRONG), "'rows' or 'tokens'"),
        (lambda: mixed().pack(4, "tokens"), r"comes after mixture\(\) of sources that pack"),
        (lambda: mixed().map_batches(lambda batch, rng: batch, rng=True), "rng=True"),
        (lambda: mixed().count(), "how many rows"),
    ],
)
def test_what_cannot_be_mixed_is_refused(build: Build, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        build()


def test_each_source_has_the_sequences_of_its_own_pipeline_and_names_come_with_them() -> None:
    own = {"web": stream(packed(100), 90), "code": stream(packed(200, 2), 30)}
    found: dict[str, list[list[int]]] = {"web": [], "code": []}
    for batch in head(mixed(source_column="source"), 12, 10):
        assert batch["tokens"].shape == batch["of"].shape == (10, 4)
        for name, tokens in zip(batch["source"], batch["tokens"].tolist(), strict=True):
            found[name].append(tokens)
    assert found == own
    schema = mixed(source_column="source").schema()
    assert schema.names == ["tokens", "of", "source"]
    assert schema.field("tokens").type.equals(pa.list_(pa.int32(), 4))
    assert schema.field("source").type == pa.string()


def test_columns_in_another_order_and_narrower_types_unify_and_end_tokens_can_differ() -> None:
    left = documents(100).repeat().pack(4, ["tokens", "of"], eos=-5)
    right = documents(2**40, pa.int64()).repeat().pack(4, ["of", "tokens"])
    (batch,) = head(windrow.mixture({"a": left, "b": right}, {"a": 1, "b": 1}, seed=7), 1, 20)
    assert batch["tokens"].dtype == np.int64
    is_left = batch["tokens"][:, 0] < 2**39
    assert batch["tokens"][is_left].tolist() == stream(left, 10)
    assert batch["tokens"][~is_left].tolist() == stream(right, 10)
    text = windrow.from_items([{"tokens": [0.5], "of": "a"}]).map_batches(
        _lists_of_text, batch_format="pyarrow"
    )
    with pytest.raises((PlanError, SourceError, TransformError), match="tokens"):
        windrow.mixture({"a": left, "b": text.repeat().pack(4, ["tokens", "of"])}, {"a": 1}, seed=7)


def _lists_of_text(table: pa.Table) -> pa.Table:
    return pa.table({"tokens": pa.array([["x"] * 9]), "of": pa.array([1])})


def test_values_that_a_source_repeats_can_be_null() -> None:
    table = pa.table({"tokens": [[1, 2, 3], [4, 5, 6]], "of": pa.array([None, 7], pa.int32())})
    pipe = windrow.from_arrow(table).repeat().pack(3, ["tokens", "of"])
    batches = windrow.mixture({"a": pipe}, {"a": 1}, seed=7).iter_batches(
        batch_size=2, batch_format="pyarrow"
    )
    assert next(iter(batches))["of"].to_pylist() == [[None] * 3, [7] * 3]


def test_transforms_behind_the_mixture_get_sequences() -> None:
    def number(batch: dict[str, Any]) -> dict[str, Any]:
        assert batch["tokens"].shape[1] == 4
        return {**batch, "source": (batch["source"] == "code").astype(np.int8)}

    pipe = mixed(source_column="source").map_batches(number)
    (batch,) = head(pipe, 1, 8)
    assert batch["source"].sum() == 2
    assert ((batch["tokens"] >= 200).any(axis=1) == batch["source"]).all()


def test_tokens_are_a_unit_of_shares_and_of_schedules() -> None:
    assert [batch["tokens"].tolist() for batch in head(mixed(unit="tokens"), 5, 8)] == [
        batch["tokens"].tolist() for batch in head(mixed(), 5, 8)
    ]
    # within the sequences 5 and 12
    phases = {0: {"web": 1}, 17: {"code": 1}, 48: {"web": 1}}
    by_tokens = mixed(Shares.steps(phases, unit="tokens"), source_column="source")
    (batch,) = head(by_tokens, 1, 20)
    assert batch["source"].tolist() == ["web"] * 5 + ["code"] * 7 + ["web"] * 8
    assert "unit='tokens'" in str(by_tokens)
    rows = Shares.steps({0: {"web": 1}, 5: {"code": 1}, 12: {"web": 1}}, unit="rows")
    assert Shares.steps(phases, unit="tokens").in_rows(4) == rows
    assert rows.in_rows(4) == rows
    # two changes within a sequence: the latter holds from the next one on
    crowded = Shares.steps({0: {"web": 1}, 5: {"code": 1}, 7: {"web": 1, "code": 1}}, unit="tokens")
    assert [phase.start for phase in crowded.in_rows(4).phases] == [0, 2]
    assert crowded.in_rows(4).at(2) == {"web": 0.5, "code": 0.5}
    assert Shares.from_json(crowded.to_json()) == crowded


def test_explain_and_stats_count_sequences() -> None:
    pipe = mixed()
    text = str(pipe.explain(2, batch_size=8))
    # 34 tokens of 8 documents, 7 of which have an end token
    assert "20 sequences in one pass of each source" in text
    assert "web 75 % (10 sequences, endlessly); code 25 % (10 sequences, endlessly)" in text
    assert "rounds of" in text
    with pipe.iterator() as shard:
        for _ in zip(range(5), shard.iter_batches(batch_size=8), strict=False):
            pass
        web, code = shard.stats().sources
        assert (web.rows, web.passes, web.share, web.achieved) == (30, 3, 0.75, 0.75)
        assert (code.rows, code.passes) == (10, 1)
        assert str(code).startswith("code 10 sequences (")
        state = shard.state_dict()
    # as everywhere with pack, the state's row counts tokens
    assert (state["row"], state["packing"]) == (5 * 8 * 4, "4")
    assert [entry[2] for entry in state["mixture"]["sources"]] == [30, 10]


def test_a_mixture_that_ends_counts_its_steps_and_drops_the_end_of_each_pass() -> None:
    sources = {"web": packed(100, times=2), "code": packed(200, 2, times=1)}
    pipe = windrow.mixture(sources, {"web": 1, "code": 1}, seed=7, when_exhausted="drop")
    batches = pipe.iter_batches(batch_size=4)
    assert len(batches) == 8
    found = [tokens for batch in batches for tokens in batch["tokens"].tolist()]
    assert len(found) == 30
    assert sorted(found) == sorted(stream(sources["web"], 99) + stream(sources["code"], 99))


def test_states_of_other_packings_are_refused() -> None:
    with mixed().iterator() as shard:
        head_of = iter(shard.iter_batches(batch_size=6))
        next(head_of)
        state = shard.state_dict()
    sources = {"web": packed(100, eos=None), "code": packed(200, 2)}
    with pytest.raises(StateError, match="source 'web'"):
        windrow.mixture(sources, {"web": 1}, seed=7).iterator(state_dict=state)
    longer = {"web": packed(100, seq_len=8), "code": packed(200, 2, seq_len=8)}
    with pytest.raises(StateError, match=r"pack +sequences of 4 +sequences of 8"):
        windrow.mixture(longer, {"web": 1}, seed=7).iterator(state_dict=state)
    with pytest.raises(StateError, match="source 'web'"):
        windrow.mixture({"web": documents(100).repeat()}, {"web": 1}, seed=7).iterator(state_dict=state)


def test_skipped_steps_and_changed_shares_count_sequences() -> None:
    whole = [tokens for batch in head(mixed(), 9, 6) for tokens in batch["tokens"].tolist()]
    with mixed().iterator() as shard:
        shard.skip_batches(4, batch_size=6)
        assert shard.state_dict()["row"] == 4 * 6 * 4
        batches = shard.iter_batches(batch_size=6)
        assert next(batches)["tokens"].tolist() == whole[24:30]
        shard.set_shares({"code": 1})
        assert (next(batches)["tokens"] < 200).sum() <= 3 * 6
        # three in four of the first 30, less than one more or less
        assert abs(shard.stats().sources[0].rows - 30 * 0.75) < 1


def test_shards_have_to_agree_on_shares() -> None:
    left, right = mixed().split(2)
    iterators = [shard.iter_batches(batch_size=6) for shard in (left, right)]
    for each in iterators:
        next(each)
    left.set_shares({"web": 1})
    right.set_shares({"code": 1})
    next(iterators[0])
    with pytest.raises(StateError, match="at row 12 with other shares"):
        next(iterators[1])
    for shard in (left, right):
        shard.close()


def test_replicas_get_the_same_sequences() -> None:
    shards = mixed(source_column="source").split(2, replicas=2)
    iterators = [[shard.iter_batches(batch_size=3) for shard in replicas] for replicas in shards]
    for _ in range(8):
        for replicas in iterators:
            one, other = (next(each) for each in replicas)
            assert one["tokens"].tolist() == other["tokens"].tolist()
            assert one["source"].tolist() == other["source"].tolist()
    for shard in (each for replicas in shards for each in replicas):
        shard.close()


def test_documents_that_change_after_they_were_counted_are_an_error() -> None:
    lengths = [3]

    def tokenize(batch: dict[str, Any]) -> pa.Table:
        return pa.table({"tokens": [[1] * lengths[0] for _ in batch["id"]]})

    source = windrow.range(20).map_batches(tokenize).repeat().pack(4, "tokens")
    pipe = windrow.mixture({"a": source}, {"a": 1}, seed=7)
    lengths[0] = 4
    with pytest.raises(SourceError, match="80 tokens, expected 60"):
        next(iter(pipe.iter_batches(batch_size=2)))


def test_a_kept_cache_is_not_that_of_another_packing_or_of_other_names(tmp_path: Path) -> None:
    pq.write_table(pa.table({"tokens": [[1, 2, 3], [4, 5]]}), tmp_path / "documents.parquet")

    def read(name: str, eos: int) -> dict[str, Any]:
        source = windrow.read_parquet(str(tmp_path / "documents.parquet")).repeat().pack(7, "tokens", eos=eos)
        pipe = windrow.mixture({name: source}, {name: 1}, seed=7, source_column="of")
        options: dict[str, Any] = {"cache": "disk", "cache_dir": str(tmp_path / "cache"), "keep_cache": True}
        return next(iter(pipe.options(**options).iter_batches(batch_size=1)))

    for name, eos in [("a", 8), ("a", 9), ("b", 9)]:
        batch = read(name, eos)
        assert batch["tokens"].tolist() == [[1, 2, 3, eos, 4, 5, eos]]
        assert batch["of"].tolist() == [name]
