"""mixture().pack(): what it takes and refuses, and what becomes of columns, names, counts and states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windrow
from windrow import Balance, Dataset, DatasetPipeline, PlanError, Shares, SourceError, StateError
from windrow.pipeline.exchange.derived_source import Parent
from windrow.pipeline.plan import leg as planning

LENGTHS = (3, 0, 7, 1, 5, 12, 2, 4)


@pytest.fixture(autouse=True)
def short_legs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan few windows at a time, so that mixtures have several legs."""
    monkeypatch.setattr(planning, "_LEG_WORK", 50)
    monkeypatch.setattr(planning, "_LEG_WINDOWS", 1)


def documents(
    value: int, kind: Any = None, lengths: Sequence[int] = LENGTHS, column: str = "tokens"
) -> Dataset:
    """Documents whose tokens are ``value`` and their place in it; ``of`` is the document's number."""
    tokens = [[value + at for at in range(length)] for length in lengths]
    arrays = {
        column: pa.array(tokens, kind or pa.list_(pa.int32())),
        "of": pa.array(range(len(tokens)), pa.int16()),
    }
    return windrow.from_arrow(pa.table(arrays), target_block_bytes=60)


def source(value: int, seed: int | None = 1, times: int | None = None, **given: Any) -> DatasetPipeline:
    pipe = documents(value, **given).window(blocks_per_window=2).repeat(times)
    return pipe if seed is None else pipe.random_shuffle_each_window(seed=seed)


def mixed(shares: Any = None, **options: Any) -> DatasetPipeline:
    sources = {"web": source(100), "code": source(200, 2)}
    return windrow.mixture(sources, shares or {"web": 3, "code": 1}, seed=7, **options)


def head(pipe: DatasetPipeline, steps: int, batch_size: int) -> list[dict[str, Any]]:
    return [batch for _, batch in zip(range(steps), pipe.iter_batches(batch_size=batch_size), strict=False)]


def tokens_of(batches: Sequence[dict[str, Any]], column: str = "tokens") -> list[Any]:
    return [value for batch in batches for value in batch[column].ravel().tolist()]


def end_to_end(pipe: DatasetPipeline, count: int) -> list[list[int]]:
    """The first documents of a mixture that is not packed."""
    found = [row["tokens"] for batch in head(pipe, -(-count // 10), 10) for row in rows_of(batch)]
    return [np.asarray(each).tolist() for each in found[:count]]


def rows_of(batch: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]


Build = Callable[[], Any]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: mixed().pack(4, "token"), "there is no column 'token' to pack"),
        (lambda: mixed().pack(4, "of"), "has lists of tokens"),
        (lambda: mixed().pack(0, "tokens"), "seq_len=0"),
        (
            lambda: mixed().pack(4, "tokens", split_documents=False),
            "split_documents=False is not for mixtures",
        ),
        (lambda: mixed().pack(4, "tokens").pack(4, "tokens"), r"pack the sources, .* or the mixture"),
        (
            lambda: mixed().map_batches(lambda batch: batch).pack(4, "tokens"),
            r"stands between mixture\(\) and pack",
        ),
        (lambda: mixed().pack(4, "tokens").filter(lambda row: True), "call it on each source"),
        (lambda: mixed().pack(4, "tokens").random_shuffle_each_window(seed=1), "orders of their own"),
        (
            lambda: windrow.mixture({"a": source(1, times=1)}, {"a": 1}, seed=7).pack(50, "tokens"),
            "ends with fewer tokens than a sequence of 50",
        ),
        (
            lambda: windrow.mixture(
                {"a": source(1), "b": source(2, lengths=(0, 0))}, {"a": 1, "b": 1}, seed=7
            ).pack(4, "tokens"),
            "'b' has no tokens: leave it out",
        ),
        (
            lambda: next(iter(mixed(unit="tokens").iter_batches(batch_size=2))),
            r"with pack\(seq_len, columns\)",
        ),
        (
            lambda: next(
                iter(mixed(Shares.steps({0: {"web": 1}}, unit="tokens")).iter_batches(batch_size=2))
            ),
            r"with pack\(seq_len, columns\)",
        ),
        (
            lambda: next(mixed().pack(4, "tokens").iter_batches(token_budget=9, balance=Balance("tokens"))),
            "every sequence has 4 tokens",
        ),
        (
            lambda: next(
                mixed().pack(4, "tokens").iter_batches(3, balance=Balance("tokens"), group_by_length=2)
            ),
            "every sequence has 4 tokens",
        ),
        (
            lambda: next(mixed().pack(4, "tokens").iter_batches(3, balance=Balance("of"))),
            "is not a list column that pack",
        ),
    ],
)
def test_what_cannot_be_joined_is_refused(build: Build, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        build()


@pytest.mark.parametrize("unit", ["rows", "tokens"])
def test_documents_come_in_the_order_of_the_mixture(unit: Any) -> None:
    pipe = mixed(unit=unit).pack(5, ["tokens", "of"], eos=-1)
    found = tokens_of(head(pipe, 40, 3))
    assert len(found) == 600
    ends = [at for at, token in enumerate(found) if token == -1]
    own = [found[first + 1 : stop] for first, stop in zip([-1, *ends], ends, strict=False)]
    of = tokens_of(head(pipe, 40, 3), "of")
    # each document is whole, and its number stands beside all of its tokens
    for (first, stop), document in zip(zip([-1, *ends], ends, strict=False), own, strict=True):
        value = 200 if document[0] >= 200 else 100
        assert document == [value + at for at in range(len(document))]
        assert {LENGTHS[number] for number in of[first + 1 : stop + 1]} == {len(document)}
    if unit == "rows":
        plain = [each for each in end_to_end(mixed(), 2 * len(own)) if each]
        assert own == plain[: len(own)]
        return
    given = {"web": 0, "code": 0}
    for document in own:
        given["code" if document[0] >= 200 else "web"] += len(document) + 1
        assert abs(given["web"] - 3 * sum(given.values()) / 4) <= 13


def test_names_of_sources_become_numbers_for_each_token() -> None:
    named = {"source_column": "from"}
    for columns in ("tokens", ["from", "tokens"]):
        pipe = mixed(**named).pack(6, columns)
        (batch,) = head(pipe, 1, 20)
        assert batch["from"].dtype == np.int32
        assert ((batch["tokens"] >= 200) == (batch["from"] == 1)).all()
        assert set(batch["from"].ravel().tolist()) == {0, 1}
        assert pipe.schema().field("from").type.equals(pa.list_(pa.int32(), 6))
    # also where "from" is what tells sequences apart, they hold documents of several sources
    assert (batch["from"].min(axis=1) < batch["from"].max(axis=1)).any()


def test_boundaries_tell_where_documents_begin() -> None:
    (batch,) = head(mixed().pack(8, ["tokens", "of"], boundaries=True), 1, 30)
    begins = batch["position_ids"] == 0
    assert (batch["segment_ids"] == begins.cumsum(axis=1) - 1).all()
    # tokens count up within a document, except where it goes on in the next sequence
    inside = ~begins[:, 1:]
    assert (np.diff(batch["tokens"], axis=1)[inside] == 1).all()
    assert (np.diff(batch["of"], axis=1)[inside] == 0).all()


@pytest.mark.parametrize(
    ("kind", "lengths"),
    [
        (pa.large_list(pa.int64()), LENGTHS),
        (pa.list_(pa.float32()), LENGTHS),
        (pa.list_(pa.int32(), 3), (3, 3, 3, 3)),
        (pa.list_(pa.uint8()), LENGTHS),
    ],
)
def test_all_types_of_lists_and_numbers(kind: pa.DataType, lengths: tuple[int, ...]) -> None:
    given: dict[str, Any] = {"kind": kind, "lengths": lengths}
    sources = {"a": source(10, **given), "b": source(60, 2, **given)}
    pipe = windrow.mixture(sources, {"a": 1, "b": 1}, seed=7)
    plain = [token for each in end_to_end(pipe, 80) for token in each]
    assert tokens_of(head(pipe.pack(4, "tokens"), 10, 3))[:100] == plain[:100]


def test_a_mixture_that_ends_delivers_all_but_the_last_tokens() -> None:
    sources = {"a": source(100, times=2), "b": source(200, 2, times=1)}
    pipe = windrow.mixture(sources, {"a": 1, "b": 1}, seed=7, when_exhausted="drop", unit="tokens")
    # 34 tokens in a pass
    packed = pipe.pack(5, "tokens")
    assert len(packed.iter_batches(batch_size=4)) == 5
    found = tokens_of(list(packed.iter_batches(batch_size=4)))
    assert len(found) == 100
    counts = np.bincount(found, minlength=300)
    expected = np.zeros(300, np.int64)
    for length in LENGTHS:
        expected[100 : 100 + length] += 2
        expected[200 : 200 + length] += 1
    assert (expected - counts >= 0).all()
    assert (expected - counts).sum() == 2


def test_the_lists_are_read_once_if_the_mixture_has_measured_them(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []
    measure = Parent.measure_rows

    def count(self: Parent, column: str, caller: str) -> Any:
        measured.append(column)
        return measure(self, column, caller)

    monkeypatch.setattr(Parent, "measure_rows", count)
    pipe = mixed(length_column="tokens")
    assert measured == ["tokens", "tokens"]
    once = tokens_of(head(pipe.pack(4, "tokens", eos=-1), 5, 4))
    assert len(measured) == 2
    other = tokens_of(head(mixed(length_column="of").pack(4, "tokens", eos=-1), 5, 4))
    assert measured[2:] == ["of", "of", "tokens", "tokens"]
    assert once == other == tokens_of(head(mixed().pack(4, "tokens", eos=-1), 5, 4))


def test_explain_and_stats_tell_of_documents_and_tokens() -> None:
    pipe = mixed(unit="tokens").pack(4, "tokens", eos=0)
    text = str(pipe.explain(2, batch_size=8))
    # 34 tokens of 8 documents, 7 of which have an end token
    assert "20 sequences in one pass of each source" in text
    assert "web 75 % (8 documents, endlessly); code 25 % (8 documents, endlessly)" in text
    assert str(pipe).endswith(".pack(4, ['tokens'], eos=0)")
    with pipe.iterator() as shard:
        for _ in zip(range(5), shard.iter_batches(batch_size=8), strict=False):
            pass
        state, (web, code) = shard.state_dict(), shard.stats().sources
    assert state["row"] == 5 * 8 * 4
    begun = [entry[2] for entry in state["mixture"]["sources"]]
    assert [web.rows, code.rows] == begun
    assert str(web).startswith(f"web {begun[0]} documents (")
    assert sum(begun) == state["mixture"]["joined"][0]
    assert web.passes == begun[0] // 8
    assert abs(web.achieved - 0.75) < 13 / 160
    assert web.achieved + code.achieved == 1


def test_states_take_little_room() -> None:
    names = [f"source-{number}" for number in range(10)]
    sources = {name: source(100 * (number + 1), number) for number, name in enumerate(names)}
    pipe = windrow.mixture(sources, dict.fromkeys(names, 1), seed=7, unit="tokens").pack(64, "tokens")
    with pipe.iterator() as shard:
        for number, _ in enumerate(shard.iter_batches(batch_size=20)):
            if number == 30:
                break
        text = str(shard.state_dict())
    assert len(text) < 1_300
    with pipe.iterator() as shard:
        shard.set_shares({names[0]: 1})
        assert len(str(shard.state_dict())) < len(text)


def test_a_state_goes_on_within_a_document_and_leaves_out_what_is_left_of_a_removed_source() -> None:
    long = source(1_000, None, lengths=(50,))
    short = source(10, None, lengths=(4, 4))
    sources = {"long": long, "short": short}
    pipe = windrow.mixture(sources, {"long": 1, "short": 1}, seed=3).pack(8, "tokens")
    whole = tokens_of(head(pipe, 30, 1))
    at = whole.index(1_000) // 8 + 1
    with pipe.iterator() as shard:
        for _ in zip(range(at), shard.iter_batches(batch_size=1), strict=False):
            pass
        state = shard.state_dict()
    documents, owner, left = state["mixture"]["joined"]
    assert owner == "long"
    assert 0 < left < 50
    again = pipe.iterator(state_dict=state)
    assert (
        tokens_of([batch for _, batch in zip(range(9), again.iter_batches(batch_size=1), strict=False)])
        == (whole[8 * at : 8 * (at + 9)])
    )
    without = windrow.mixture({"short": short}, {"short": 1}, seed=3).pack(8, "tokens")
    with without.iterator(state_dict=state) as shard:
        found = next(shard.iter_batches(batch_size=3))["tokens"]
        assert found.tolist() == [[10, 11, 12, 13] * 2] * 3
        assert shard.state_dict()["mixture"]["joined"] == [documents + 6, "", 0]


def test_states_of_other_packings_are_refused() -> None:
    pipe = mixed().pack(4, "tokens")
    with pipe.iterator() as shard:
        next(shard.iter_batches(batch_size=6))
        state = shard.state_dict()
    apart = windrow.mixture(
        {"web": source(100).pack(4, "tokens"), "code": source(200, 2).pack(4, "tokens")}, {"web": 1}, seed=7
    )
    for other in (mixed().pack(5, "tokens"), mixed().pack(4, "tokens", eos=0), apart, mixed()):
        with pytest.raises(StateError, match="pack "):
            other.iterator(state_dict=state)
    other = windrow.mixture({"web": source(101), "code": source(200, 2)}, {"web": 1}, seed=7).pack(
        4, "tokens"
    )
    with pytest.raises(StateError, match="source 'web'"):
        other.iterator(state_dict=state)
    with pytest.raises(StateError, match="corrupt"):
        pipe.iterator(state_dict={**state, "mixture": {**state["mixture"], "joined": [1, "web"]}})
    with pytest.raises(StateError, match="corrupt"):
        pipe.iterator(state_dict={**state, "mixture": {**state["mixture"], "joined": [1, "", 5]}})


def test_skipped_steps_and_changed_shares() -> None:
    pipe = mixed().pack(4, "tokens")
    whole = tokens_of(head(pipe, 9, 6))
    with pipe.iterator() as shard:
        shard.skip_batches(4, batch_size=6)
        assert shard.state_dict()["row"] == 4 * 6 * 4
        batches = shard.iter_batches(batch_size=6)
        assert tokens_of([next(batches)]) == whole[96:120]
        shard.set_shares({"code": 1})
        changed = tokens_of([next(batches), next(batches)])
        # the document that has begun goes on
        (first,) = [at for at, token in enumerate(changed) if token >= 200][:1]
        assert changed[:first] == whole[120 : 120 + first]
        assert all(token >= 200 for token in changed[first:])


def test_shards_and_replicas_read_one_mixture() -> None:
    pipe = mixed(unit="tokens").pack(6, "tokens", eos=0)
    whole = [row for batch in head(pipe, 6, 6) for row in batch["tokens"].tolist()]
    shards = pipe.split(2, replicas=2)
    iterators = [[shard.iter_batches(batch_size=3) for shard in replicas] for replicas in shards]
    for step in range(6):
        for number, replicas in enumerate(iterators):
            one, other = (next(each)["tokens"].tolist() for each in replicas)
            assert one == other == whole[6 * step + 3 * number :][:3]
    for shard in (each for replicas in shards for each in replicas):
        shard.close()


def test_documents_that_change_after_they_were_counted_are_an_error() -> None:
    lengths = [3]

    def tokenize(batch: dict[str, Any]) -> pa.Table:
        return pa.table({"tokens": [[1] * lengths[0] for _ in batch["id"]]})

    pipe = windrow.mixture({"a": windrow.range(20).map_batches(tokenize).repeat()}, {"a": 1}, seed=7)
    packed = pipe.pack(4, "tokens")
    lengths[0] = 4
    with pytest.raises(SourceError, match="tokens"):
        next(iter(packed.iter_batches(batch_size=2)))
