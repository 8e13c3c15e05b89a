"""Packing through the public API: real text comes back on every topology, and errors say why."""

from __future__ import annotations

import threading
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
from tests.conftest import REPOSITORY
from windrow.core.errors import PlanError, SourceError, StateError, TransformError

EOS = 256
LENGTH = 100


@pytest.fixture(scope="module")
def paragraphs() -> list[str]:
    """The paragraphs of this project's documentation: a few thousand documents of 1 to about 3,000 bytes."""
    pages = sorted((REPOSITORY / "docs").rglob("*.md"))
    return [part for page in pages for part in page.read_text("utf-8").split("\n\n") if part]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, paragraphs: list[str]) -> Path:
    found = tmp_path_factory.mktemp("documents")
    for part in range(4):
        texts = paragraphs[part::4]
        table = pa.table({"text": texts, "document": np.arange(len(paragraphs))[part::4]})
        pq.write_table(table, found / f"part-{part}.parquet", row_group_size=40)
    return found


def tokenize(batch: Any) -> pa.Table:
    lists = [list(text.encode()) for text in batch["text"].to_pylist()]
    return pa.table({"tokens": pa.array(lists, pa.list_(pa.int16())), "document": batch["document"]})


def _pipe(folder: Path, seed: int | None = 7) -> windrow.DatasetPipeline:
    pipe = windrow.read_parquet(folder).map_batches(tokenize, batch_format="pyarrow")
    shuffled = pipe.window(blocks_per_window=7).repeat(3)
    return shuffled if seed is None else shuffled.random_shuffle_each_window(seed=seed)


def _texts(tokens: np.ndarray) -> list[str]:
    """The documents in a stream of tokens; the last one can be cut."""
    ends = np.flatnonzero(tokens == EOS)
    return [part[part != EOS].astype(np.uint8).tobytes().decode() for part in np.split(tokens, ends + 1)[:-1]]


@pytest.mark.ray_at_night
@pytest.mark.parametrize("executor", ["threads", "ray"])
def test_text_comes_back_in_the_order_of_its_documents(
    folder: Path, paragraphs: list[str], executor: str, request: pytest.FixtureRequest
) -> None:
    if executor == "ray":
        request.getfixturevalue("ray_local")
    pipe = _pipe(folder).options(executor=executor)
    orders = [[row["document"] for row in epoch.iter_rows()] for epoch in pipe.iter_epochs()]
    packed = pipe.pack(LENGTH, ["tokens", "document"], eos=EOS)
    # two shards, then three from the middle of the second epoch, and one at the end
    parts, state = packed.split(2), None
    epochs: list[list[Any]] = [[], [], []]
    for epochs_of_both in zip(*(shard.iter_epochs() for shard in parts), strict=True):
        number = epochs_of_both[0].number
        # in the last step, the first shard can have a batch alone
        for step, batches in enumerate(zip_longest(*(epoch.iter_batches(6) for epoch in epochs_of_both))):
            epochs[number] += [batch for batch in batches if batch is not None]
            if number == 1 and step == 5:
                state = [shard.state_dict() for shard in parts]
                break
        if state is not None:
            break
    assert state is not None
    assert state[0] == state[1]
    for shard in parts:
        shard.close()
    parts = packed.split(3, state_dict=state[0])
    for epochs_of_all in zip(*(shard.iter_epochs() for shard in parts), strict=True):
        found = [list(epoch.iter_batches(4)) for epoch in epochs_of_all]
        for step in range(max(map(len, found))):
            epochs[epochs_of_all[0].number] += [each[step] for each in found if step < len(each)]
    for shard in parts:
        shard.close()
    for order, delivered in zip(orders, epochs, strict=True):
        tokens = np.concatenate([batch["tokens"] for batch in delivered])
        documents = np.concatenate([batch["document"] for batch in delivered]).ravel()
        assert tokens.shape[1] == LENGTH
        texts = _texts(tokens.ravel())
        assert texts == [paragraphs[document] for document in order[: len(texts)]]
        assert sum(len(paragraphs[row].encode()) + 1 for row in order) - tokens.size < LENGTH
        assert documents[tokens.ravel() == EOS].tolist() == order[: len(texts)]


@pytest.mark.filterwarnings("ignore:each of the . DataLoader workers:RuntimeWarning")
def test_dataloader_workers_share_the_sequences(folder: Path) -> None:
    torch_data = pytest.importorskip("torch.utils.data")
    packed = _pipe(folder).options(executor="threads").pack(LENGTH, "tokens", eos=EOS)
    expected = [batch["tokens"].tolist() for batch in packed.iterator().iter_batches(5, drop_last=True)]
    loader = torch_data.DataLoader(
        packed.iterator().as_torch_dataset(batch_size=5, drop_last=True), batch_size=None, num_workers=2
    )
    assert [batch["tokens"].tolist() for batch in loader] == expected


def test_schema_count_steps_and_exports(folder: Path, tmp_path: Path) -> None:
    packed = _pipe(folder, seed=None).pack(LENGTH, ["tokens", "document"], eos=EOS)
    assert packed.schema() == pa.schema(
        {"tokens": pa.list_(pa.int16(), LENGTH), "document": pa.list_(pa.int64(), LENGTH)}
    )
    table = packed.to_arrow()
    assert table.num_rows == packed.count()
    assert packed.to_arrow(3).equals(table.slice(0, 3))
    with packed.iterator() as shard:
        with pytest.raises(PlanError, match="is not known yet"):
            shard.steps_per_epoch(4)
        epochs = shard.iter_epochs()
        list(next(epochs).iter_batches(4))
        assert shard.steps_per_epoch(4) == -(-table.num_rows // 4) == len(next(epochs).iter_batches(4))
        assert shard.stats().rows >= table.num_rows
    alone = _pipe(folder, seed=None).pack(LENGTH, "tokens")
    result = alone.write_parquet(tmp_path / "out")
    written = pq.read_table(tmp_path / "out" / "epoch=0", partitioning=None)
    assert written.equals(alone.to_arrow())
    assert len(result.files) >= 3


def test_transforms_behind_get_sequences(folder: Path) -> None:
    def shift(batch: dict[str, Any]) -> dict[str, Any]:
        assert batch["tokens"].shape[1:] == (LENGTH,)
        return {"inputs": batch["tokens"][:, :-1], "labels": batch["tokens"][:, 1:]}

    packed = _pipe(folder).pack(LENGTH, "tokens", eos=EOS)
    shifted = packed.map_batches(shift)
    assert shifted.schema().names == ["inputs", "labels"]
    for batch, whole in zip(shifted.iter_batches(9), packed.iter_batches(9), strict=True):
        assert (batch["inputs"] == whole["tokens"][:, :-1]).all()
        assert (batch["labels"] == whole["tokens"][:, 1:]).all()


def test_transforms_behind_get_what_is_delivered_once_and_not_the_whole_run(tmp_path: Path) -> None:
    pq.write_table(pa.table({"t": [list(range(50))] * 2_000}), tmp_path / "t.parquet", row_group_size=300)
    calls: list[tuple[str, int]] = []

    def widen(batch: dict[str, Any]) -> dict[str, Any]:
        calls.append((threading.current_thread().name, len(batch["t"])))
        return {"t": batch["t"], "mask": np.zeros((len(batch["t"]), 2**17), np.uint8)}

    pipe = windrow.read_parquet(tmp_path / "t.parquet").window(blocks_per_window=2).repeat(1)
    packed = pipe.random_shuffle_each_window(seed=1).options(executor="threads").pack(64, "t")
    # a batch as large as a run, too, which worker threads would convert
    for batch_size in (8, 2**16):
        calls.clear()
        rows = [len(batch["t"]) for batch in packed.map_batches(widen).iter_batches(batch_size)]
        assert sum(rows) == sum(count for _, count in calls) == 100_000 // 64
        assert {name for name, _ in calls} == {"windrow-prefetch"}
        assert batch_size > 8 or max(count for _, count in calls) <= 64


def test_statistics_count_sequences(folder: Path) -> None:
    packed = _pipe(folder).options(executor="threads").pack(LENGTH, "tokens", eos=EOS)
    count = packed.count()
    for equal, left_out, padded in ((True, count % 4, 0), (False, 0, 0), ("pad", 0, -count % 4)):
        parts = packed.split(4, equal=equal)  # type: ignore[arg-type]
        epochs = [next(shard.iter_epochs()) for shard in parts]
        rows = [sum(len(batch["tokens"]) for batch in epoch.iter_batches(3)) for epoch in epochs]
        run = parts[0].stats().run
        assert (run.epoch_rows, run.left_out_rows) == (count, left_out)
        assert [epoch.padded_rows for epoch in epochs] == [padded] * 4
        assert sum(rows) == count - left_out + padded
        assert [shard.stats().rows for shard in parts] == rows
        for shard in parts:
            shard.close()


def test_blocks_are_placed_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [list(range(row % 40)) for row in range(3_000)]
    pq.write_table(pa.table({"t": documents}), tmp_path / "t.parquet")
    packed = (
        windrow.read_parquet(tmp_path / "t.parquet").repeat(1).random_shuffle_each_window(seed=4).pack(9, "t")
    )
    expected = packed.to_arrow()
    for tokens in (1, 100, 10**6):
        monkeypatch.setattr("windrow.pipeline.tasks.task.PLACED_TOKENS", tokens)
        assert packed.to_arrow().equals(expected)


def test_lists_are_decoded_from_files_as_arrow_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(2)
    for part, compression in enumerate(["zstd", "none", "snappy"]):
        lists = [rng.integers(0, 300, int(size)).tolist() for size in rng.integers(0, 90, 300)]
        rows = {"text": ["not packed"] * 300, "t": lists, "document": np.arange(300) + 300 * part}
        pq.write_table(
            pa.table(rows), tmp_path / f"{part}.parquet", compression=compression, row_group_size=70
        )
    source = windrow.read_parquet(tmp_path, target_block_bytes=20_000).window(blocks_per_window=5)
    pipe = (
        source.repeat(1).random_shuffle_each_window(seed=1).options(executor="threads", row_id_column="row")
    )
    packed = pipe.pack(64, ["document", "t", "row"], eos=0)
    decoded = packed.to_arrow()
    monkeypatch.setattr("windrow.pipeline.tasks.map_task.decode_documents", lambda *_: None)
    assert packed.to_arrow().equals(decoded)
    names = [np.concatenate(decoded[name].to_numpy()) for name in ("document", "row")]
    assert (names[0] == names[1]).all()


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray")
def test_to_ray_gets_sequences(folder: Path, ray_local: Any) -> None:
    packed = _pipe(folder, seed=None).pack(LENGTH, "tokens", eos=EOS)
    assert packed.to_ray().count() == packed.count()


def test_explain_names_it(folder: Path) -> None:
    plan = _pipe(folder).pack(LENGTH, "tokens", eos=EOS).explain(2, batch_size=4)
    assert not plan.rows_known
    assert "pack(100, ['tokens'], eos=256), to be counted" in str(plan)
    assert ".pack(100, ['tokens'], eos=256)" in repr(_pipe(folder).pack(LENGTH, "tokens", eos=EOS))


def copy_batch(batch: dict[str, Any]) -> dict[str, Any]:
    return dict(batch)


def test_states_of_other_packings_are_rejected(folder: Path) -> None:
    packed = _pipe(folder).pack(LENGTH, "tokens", eos=EOS)
    with packed.iterator() as shard:
        next(shard.iter_batches(4))
        state = shard.state_dict()
    assert (state["batch_size"], state["row"]) == (4, 400)
    with pytest.raises(StateError, match=r"pack .*100 .* 50$"):
        _pipe(folder).pack(50, "tokens", eos=EOS).iterator(state_dict=state)
    with pytest.raises(StateError, match=r"pack .* none"):
        _pipe(folder).iterator(state_dict=state)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda pipe: pipe.pack(8, "t").pack(8, "t"), "already packs"),
        (lambda pipe: pipe.pack(8, "u"), "there is no column 'u' to pack"),
        (lambda pipe: pipe.pack(8, "x"), "none of the columns 'x' to pack has lists"),
        (lambda pipe: pipe.pack(8, "t").random_shuffle_each_window(seed=1), "shuffle first"),
        (
            lambda pipe: pipe.random_shuffle_each_window(seed=1).map_batches(copy_batch).pack(8, "t"),
            r"map_batches\(copy_batch\) stands between",
        ),
        (
            lambda pipe: pipe.pack(8, "t").map_batches(copy_batch, preserves_rows=False),
            r"comes after pack\(\)",
        ),
        (lambda pipe: pipe.pack(8, "t").epoch_lineage(0, 0, 1), "keep a column that names each document"),
    ],
)
def test_what_cannot_be_packed_says_why(build: Any, message: str) -> None:
    pipe = windrow.from_items([{"t": [1, 2, 3], "x": 1}] * 4).repeat(1)
    with pytest.raises(PlanError, match=message):
        build(pipe)


def test_nulls_name_block_and_column() -> None:
    pipe = windrow.from_items([{"t": [1]}, {"t": None}]).repeat(1).pack(2, "t")
    with pytest.raises(TransformError, match=r"from_items.*column 't' has nulls"):
        next(iter(pipe.iter_batches()))


def test_a_tokenizer_that_is_not_a_pure_function_is_found() -> None:
    calls = []

    def tokenize_otherwise(batch: Any) -> Any:
        calls.append(1)
        lists = [[1], [2, 3]] if len(calls) == 1 else [[1, 2], [3]]
        return pa.table({"t": lists})

    documents = windrow.from_items([{"x": 1}, {"x": 2}]).map_batches(tokenize_otherwise)
    pipe = documents.repeat(2).random_shuffle_each_window(seed=1).options(executor="threads")
    # the epoch counts again, since a task reads and orders only what has been counted
    with pytest.raises(SourceError, match=r"read 2 documents of 3 tokens.*not a pure function"):
        list(pipe.pack(1, "t").iter_batches())


def test_no_documents() -> None:
    empty = windrow.from_items([{"t": [1]}]).map_batches(
        lambda batch: {"t": batch["t"][:0]}, preserves_rows=False
    )
    assert list(empty.repeat(2).pack(4, "t").iter_batches()) == []
    short = windrow.from_items([{"t": [1]}]).repeat(1).pack(4, "t")
    assert short.to_arrow().num_rows == 0
    assert short.schema() == short.to_arrow().schema == pa.schema({"t": pa.list_(pa.int64(), 4)})


def _whole(lengths: list[int], seq_len: int = 4, **arguments: Any) -> windrow.DatasetPipeline:
    documents = windrow.from_items([{"t": [1] * length, "name": at + 1} for at, length in enumerate(lengths)])
    pipe = documents.repeat(1).options(executor="threads")
    return pipe.pack(seq_len, ["t", "name"], split_documents=False, **arguments)


def test_long_documents_are_refused_cut_or_dropped() -> None:
    with pytest.raises(
        TransformError, match=r"from_items.*document 1 .*has 9 tokens.*long_documents='cut' or 'drop'"
    ):
        list(_whole([3, 9]).iter_batches())
    with pytest.raises(TransformError, match="has 5 tokens"):
        list(_whole([4], eos=0).iter_batches())
    (batch,) = _whole([3, 9], long_documents="cut").iter_batches()
    assert batch["name"].tolist() == [[1, 1, 1, 2], [2, 2, 2, 2], [2, 2, 2, 2]]
    with _whole([3, 9, 5, 1], long_documents="drop").iterator() as shard:
        (batch,) = shard.iter_batches()
        assert batch["name"].tolist() == [[1, 1, 1, 4]]
        assert shard.stats().run.dropped_documents == 2
    assert _whole([5], long_documents="drop").to_arrow().num_rows == 0


def test_padding_has_a_value_by_column() -> None:
    (batch,) = _whole([3, 2]).iter_batches()
    assert batch["t"].tolist() == [[1, 1, 1, 0], [1, 1, 0, 0]]
    (batch,) = _whole([3, 2], pad={"t": -100}).iter_batches()
    assert batch["t"].tolist() == [[1, 1, 1, -100], [1, 1, -100, -100]]
    assert batch["name"].tolist() == [[1, 1, 1, 0], [2, 2, 0, 0]]


def test_positions_and_segments_without_padding() -> None:
    documents = windrow.from_items([{"t": [1, 2, 3]}, {"t": [4]}, {"t": [5, 6]}, {"t": [7, 8]}])
    pipe = documents.repeat(1).pack(4, "t", boundaries=True)
    assert pipe.schema().names == ["t", "position_ids", "segment_ids"]
    (batch,) = pipe.iter_batches()
    assert batch["t"].tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0], [0, 1, 0, 1]]
    assert batch["segment_ids"].tolist() == [[0, 0, 0, 1], [0, 0, 1, 1]]
    assert pipe.to_arrow().schema == pipe.schema()
    (narrow,) = pipe.map_batches(lambda batch: {"p": batch["position_ids"]}).iter_batches()
    assert narrow["p"].tolist() == batch["position_ids"].tolist()


def test_steps_are_those_of_the_epoch() -> None:
    rng = np.random.default_rng(1)
    rows = [{"t": [1] * int(size)} for size in rng.integers(1, 30, 300)]
    pipe = windrow.from_items(rows, target_block_bytes=400).window(blocks_per_window=3).repeat(4)
    packed = (
        pipe.random_shuffle_each_window(seed=1)
        .options(executor="threads")
        .pack(32, "t", split_documents=False)
    )
    with packed.iterator() as shard:
        counts = []
        for epoch in shard.iter_epochs():
            batches = epoch.iter_batches(2)
            rows_of_epoch = sum(len(batch["t"]) for batch in batches)
            # the first epoch is counted as it is read
            assert not epoch.number or len(batches) == -(-rows_of_epoch // 2)
            assert shard.steps_per_epoch(2) == -(-rows_of_epoch // 2)
            assert shard.stats().run.epoch_rows == rows_of_epoch
            counts.append(rows_of_epoch)
    assert packed.count() == counts[0]
    assert len(set(counts)) > 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pad": 1}, r"pack\(pad=...\) is for whole documents: add split_documents=False"),
        ({"long_documents": "cut"}, r"pack\(long_documents=...\) is for whole documents"),
        ({"split_documents": False, "long_documents": "keep"}, "must be 'error', 'cut' or 'drop'"),
        ({"split_documents": False, "pad": {"u": 1}}, r"pack\(pad=...\) names 'u'"),
        ({"split_documents": False, "pad": 0.5}, r"pad=0.5\) is not a value of column 't'"),
        ({"split_documents": False, "seq_len": 2**24}, r"seq_len must be at most 16,777,215"),
        ({"boundaries": True, "columns": ["t", "segment_ids"]}, "makes the column 'segment_ids'"),
    ],
)
def test_wrong_arguments_for_whole_documents(arguments: dict[str, Any], message: str) -> None:
    pipe = windrow.from_items([{"t": [1, 2, 3], "segment_ids": 1}]).repeat(1)
    with pytest.raises(PlanError, match=message):
        pipe.pack(**{"seq_len": 8, "columns": "t", **arguments})


@pytest.mark.parametrize("arguments", [{"split_documents": False}, {"boundaries": True}])
def test_mixtures_take_neither(arguments: dict[str, Any]) -> None:
    documents = windrow.from_items([{"t": [1, 2, 3]}]).repeat()
    sources = {"a": documents.pack(2, "t"), "b": documents.pack(2, "t", **arguments)}
    with pytest.raises(PlanError, match="of the source 'b' is not for mixtures"):
        windrow.mixture(sources, shares={"a": 1, "b": 1}, seed=1)
