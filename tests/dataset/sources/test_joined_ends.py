"""mixture().pack(): sources that end, documents that go on, states of other tokens, and what errors name."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import windrow
from tests.dataset.sources.test_joined_mixture import head, mixed, short_legs, source, tokens_of
from windrow import DatasetPipeline, Shares, StateError

__all__ = ["short_legs"]


def whole(pipe: DatasetPipeline, batch_size: int) -> list[int]:
    return [len(batch["tokens"]) for batch in pipe.iter_batches(batch_size=batch_size)]


@pytest.mark.parametrize("change", [3, 4])
@pytest.mark.parametrize("unit", ["rows", "tokens"])
def test_a_source_ends_where_shares_change_that_leave_it_out(change: int, unit: Any) -> None:
    shares = Shares.steps({0: {"a": 1}, change: {"b": 1}}, unit="tokens")
    sources = {"a": source(100, None, 1, lengths=(2, 2)), "b": source(200, None, 1, lengths=(2,) * 20)}
    pipe = windrow.mixture(sources, shares, seed=3, unit=unit).pack(2, "tokens")
    assert whole(pipe, 5) == [5, 5, 5, 5, 2]
    assert len(pipe.iter_batches(batch_size=5)) == 5
    assert tokens_of(list(pipe.iter_batches(batch_size=5)))[:6] == [100, 101, 100, 101, 200, 201]


@pytest.mark.parametrize("unit", ["rows", "tokens"])
@pytest.mark.parametrize("when", ["stop", "drop"])
def test_a_document_goes_on_though_its_source_has_fewer_passes_now(unit: Any, when: Any) -> None:
    sources = {"a": source(100, None, 1, lengths=(9, 9)), "b": source(200, None, 1, lengths=(2,) * 40)}

    def make(when_exhausted: Any) -> DatasetPipeline:
        pipe = windrow.mixture(sources, {"a": 1, "b": 1}, seed=3, unit=unit, when_exhausted=when_exhausted)
        return pipe.pack(2, "tokens")

    ahead = tokens_of(head(make("repeat"), 30, 1))
    # within the first document of the second pass
    at = [place for place, token in enumerate(ahead) if token == 100][2] // 2 + 2
    with make("repeat").iterator() as shard:
        for _ in zip(range(at), shard.iter_batches(batch_size=1), strict=False):
            pass
        state = shard.state_dict()
    left = state["mixture"]["joined"][2]
    assert left > 0
    with make(when).iterator(state_dict=state) as shard:
        rest = tokens_of(list(shard.iter_batches(batch_size=1)))
    assert rest[: left // 2 * 2] == ahead[2 * at :][: left // 2 * 2]
    if when == "drop":
        assert {token for token in rest[left:] if token < 200} == set()
        assert len(rest) > left + 10


def test_row_ids_of_the_mixture_can_be_packed() -> None:
    pipe = mixed().options(row_id_column="row").pack(4, ["tokens", "row"])
    (batch,) = head(pipe, 1, 30)
    pairs = set(zip(batch["row"].ravel().tolist(), (batch["tokens"] // 100).ravel().tolist(), strict=True))
    # a row is of one source
    assert len(pairs) == len({row for row, _ in pairs})


def test_documents_of_other_lengths_than_the_state_knows_are_an_error() -> None:
    def make(length: int) -> DatasetPipeline:
        def tokenize(batch: dict[str, Any]) -> pa.Table:
            return pa.table({"tokens": [[1] * length for _ in batch["id"]]})

        sources = {"a": windrow.range(5).map_batches(tokenize).repeat()}
        return windrow.mixture(sources, {"a": 1}, seed=1).pack(7, "tokens")

    with make(9).iterator() as shard:
        next(shard.iter_batches(batch_size=1))
        state = shard.state_dict()
    with pytest.raises(
        StateError, match=r"of which 2 tokens are left, and it has 1: resume with the transforms"
    ):
        make(1).iterator(state_dict=state)


def test_the_printed_mixture_tells_what_shares_are_of() -> None:
    text = str(mixed(unit="tokens", length_column="tokens").pack(4, "tokens"))
    assert "mixture(seed=7, when_exhausted='stop', unit='tokens', length_column='tokens')" in text


def test_nulls_are_named_by_the_call_that_counts_them() -> None:
    table = pa.table({"tokens": pa.array([[1, 2], None], pa.list_(pa.int32()))})
    pipe = windrow.mixture({"a": windrow.from_arrow(table).repeat()}, {"a": 1}, seed=1)
    with pytest.raises(windrow.TransformError, match=r"^pack, .*column 'tokens' has nulls"):
        pipe.pack(2, "tokens")
