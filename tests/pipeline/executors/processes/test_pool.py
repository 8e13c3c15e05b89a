"""Transforms in processes of this machine: the rows of a run without them, memory, errors, and scripts."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import windrow
from tests.end_to_end.reading import eventually
from tests.pipeline.executors.processes import functions
from tests.pipeline.executors.processes.pools import ROWS, pids_of, read, shuffled, worker_pids
from windrow.core.errors import PlanError, StallError, TransformError
from windrow.pipeline.executors.processes import pool


@pytest.mark.parametrize("compute", ["processes", windrow.ActorPool(2)])
@pytest.mark.parametrize("size", [None, 7])
def test_rows_are_those_of_a_run_in_one_process(compute: Any, size: int | None) -> None:
    expected = read(shuffled(epochs=2).map_batches(functions.augment, rng=True))
    pipe = shuffled(epochs=2).map_batches(functions.augment, rng=True, batch_size=size, compute=compute)
    assert read(pipe) == expected


def test_batches_are_tensors_that_may_be_written_to() -> None:
    pipe = shuffled().map_batches(functions.augment, rng=True, compute="processes").drop_columns("text")
    found = []
    for batch in pipe.iter_torch_batches(batch_size=20):
        found += batch["pixels"][:, 0, 0].tolist()
        batch["pixels"].zero_()
        batch["id"].zero_()
    assert sorted(found) == sorted(number % 256 for number in range(ROWS))


def test_each_process_makes_one_object_and_takes_many_batches() -> None:
    pipe = shuffled().map_batches(functions.Counting, compute=windrow.ActorPool(2))
    batches = read(pipe)
    pids = {pid for batch in batches for pid in batch["pid"]}
    assert os.getpid() not in pids
    assert 1 <= len(pids) <= 2
    assert max(calls for batch in batches for calls in batch["calls"]) > 1


def test_shards_of_a_run_share_the_processes() -> None:
    pipe = shuffled(3 * ROWS).map_batches(functions.Counting, compute=windrow.ActorPool(2))
    shards = pipe.split(3)
    pids: list[int] = []

    def consume(shard: windrow.Shard) -> None:
        for batch in shard.iter_batches(20):
            pids.extend(batch["pid"].tolist())

    threads = [threading.Thread(target=consume, args=(shard,)) for shard in shards]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(pids) == 3 * ROWS
    assert len(set(pids)) <= 2


def test_before_the_shuffle_too(tmp_path: Path) -> None:
    dataset = windrow.range(ROWS).repartition(6).options(executor="threads")
    pooled = dataset.map_batches(functions.Counting, compute="processes")
    pipe = pooled.window(blocks_per_window=2).random_shuffle_each_window(seed=7).options(progress=False)
    batches = read(pipe)
    assert [batch["id"] for batch in batches] == [batch["id"] for batch in read(shuffled())]
    assert os.getpid() not in {pid for batch in batches for pid in batch["pid"]}
    pooled.write_parquet(tmp_path / "out")
    written = windrow.read_parquet(tmp_path / "out").to_arrow()
    assert written["id"].to_pylist() == list(range(ROWS))
    assert os.getpid() not in set(written["pid"].to_pylist())


@pytest.mark.parametrize(
    ("fn", "match", "cause"),
    [
        (
            functions.Unmakable,
            "while making an object of the class: FileNotFoundError: weights",
            FileNotFoundError,
        ),
        (
            functions.fail_at_250,
            r"fail_at_250\), epoch 0, window \d, .*ZeroDivisionError: at 250",
            ZeroDivisionError,
        ),
        (functions.end_process, r"end_process.*SystemExit: 3.*cannot end the process", None),
    ],
)
def test_errors_of_functions(fn: Any, match: str, cause: Any) -> None:
    pipe = shuffled().map_batches(fn, compute="processes")
    with pytest.raises(TransformError, match=match) as raised:
        read(pipe)
    assert cause is None or isinstance(raised.value.__cause__, cause)


def test_what_cannot_be_pickled_is_named() -> None:
    lock = threading.Lock()

    def locked(batch: Any) -> Any:
        with lock:
            return batch

    with pytest.raises(PlanError, match=r"locked.* cannot be sent to worker processes.*cannot pickle.*lock"):
        read(shuffled().map_batches(locked, compute="processes"))


def test_functions_of_a_script_are_sent_as_they_are() -> None:
    factor = 3
    pipe = shuffled().map_batches(lambda batch: {"id": batch["id"] * factor}, compute="processes")
    assert sorted(number for batch in read(pipe) for number in batch["id"]) == [3 * x for x in range(ROWS)]


def test_rows_that_fail_are_put_aside(tmp_path: Path) -> None:
    dataset = (
        windrow.range(20)
        .repartition(2)
        .options(executor="threads")
        .map(functions.invert_row, compute="processes")
    )
    with pytest.warns(RuntimeWarning, match="failed for 1 row"):
        dataset.write_parquet(tmp_path / "out", failed_rows=tmp_path / "failed")
    assert windrow.read_parquet(tmp_path / "out").count() == 19
    (row,) = windrow.read_parquet(tmp_path / "failed").take()
    assert row["id"] == 7
    assert "ZeroDivisionError" in row["windrow_error"]


def test_a_function_may_keep_the_memory_of_its_batches() -> None:
    pipe = shuffled(2000, 20).map_batches(functions.Keeping, compute=windrow.ActorPool(1))
    assert all(same for batch in read(pipe, 50) for same in batch["same"])


def test_a_pool_grows_while_it_is_busy_and_shrinks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_IDLE_SECONDS", 0.3)
    pipe = shuffled(2000, 20).map_batches(
        functions.Counting, fn_constructor_args=(0.05,), compute=windrow.ActorPool(min_size=1, max_size=3)
    )
    with pipe.iterator() as shard:
        batches, most, taken = iter(shard.iter_batches(20)), 0, 0
        for batch in itertools.islice(batches, 50):
            most, taken = max(most, len(worker_pids())), taken + len(batch["id"])
        assert 2 <= most <= 3
        # nothing is taken, so nothing is made
        assert eventually(lambda: len(worker_pids()) == 1)
        rest = [number for batch in batches for number in batch["id"].tolist()]
    assert taken + len(rest) == 2000


def test_a_stall_names_the_transform_and_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    from windrow.pipeline.executors import threads_job

    monkeypatch.setattr(pool, "_END_SECONDS", 0.5)
    monkeypatch.setattr(threads_job, "_SLOW_CALL_SECONDS", 1.0)
    pipe = shuffled().options(stall_timeout=4).map_batches(functions.sleep_long, compute="processes")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with pytest.raises(
            StallError, match=r"map_batches\(sleep_long\) has worked on a batch for \d+ s in process \d+"
        ):
            read(pipe)


def test_a_state_resumes_on_other_numbers_of_shards() -> None:
    def prepared(compute: Any) -> windrow.DatasetPipeline:
        return shuffled().map_batches(functions.augment, rng=True, compute=compute)

    expected = [
        row for batch in read(prepared(None)) for row in zip(batch["id"], batch["noise"], strict=True)
    ]
    with prepared("processes").iterator() as shard:
        batches = iter(shard.iter_batches(20))
        first = [next(batches) for _ in range(6)]
        state = shard.state_dict()
    found = [
        row for batch in first for row in zip(batch["id"].tolist(), batch["noise"].tolist(), strict=True)
    ]
    shards = prepared("processes").split(2, state_dict=state)
    parts = [list(shard.iter_batches(10)) for shard in shards]
    for step in zip(*parts, strict=True):
        for batch in step:
            found += zip(batch["id"].tolist(), batch["noise"].tolist(), strict=True)
    assert found == expected


def test_replicas_get_the_same_rows_from_processes() -> None:
    pipe = shuffled().map_batches(functions.Counting, compute=windrow.ActorPool(2))
    [replicas] = pipe.split(1, equal=True, replicas=2)

    def consume(shard: windrow.Shard) -> list[Any]:
        return [(batch["id"].tolist(), batch["pid"].tolist()) for batch in shard.iter_batches(20)]

    with ThreadPoolExecutor(2) as threads:
        one, other = threads.map(consume, replicas)
    assert one == other
    assert [ids for ids, _ in one] == [batch["id"] for batch in read(shuffled())]
    assert os.getpid() not in {pid for _, pids in one for pid in pids}


def test_sequences_pass_through_processes() -> None:
    documents = windrow.from_items([{"tokens": [row] * (row % 7)} for row in range(200)]).repartition(4)
    packed = documents.window(blocks_per_window=2).random_shuffle_each_window(seed=3).pack(8, ["tokens"])
    packed = packed.options(executor="threads", progress=False)

    def tokens(pipe: windrow.DatasetPipeline) -> list[Any]:
        return [batch["tokens"].tolist() for batch in pipe.iter_batches(batch_size=2)]

    assert tokens(packed.map_batches(functions.double_tokens, compute="processes")) == [
        (2 * np.array(batch)).tolist() for batch in tokens(packed)
    ]


def test_transforms_before_operations_on_all_rows_have_their_processes(tmp_path: Path) -> None:
    counted = (
        windrow.range(100).repartition(4).map_batches(functions.Counting, compute="processes", num_gpus=0.5)
    )
    counted = counted.options(executor="threads", progress=False)
    source = counted.repeat(1).random_shuffle_each_window(seed=1)
    made = [
        counted.sort("id", descending=True).repeat(1),
        counted.union(counted).repeat(1),
        windrow.mixture({"a": source, "b": source}, {"a": 1, "b": 1}, seed=2),
    ]
    for pipe in made:
        batches = read(pipe)
        assert {number for batch in batches for number in batch["id"]} == set(range(100))
        assert os.getpid() not in pids_of(batches)
    counted.union(counted).write_parquet(tmp_path / "out")
    assert os.getpid() not in set(windrow.read_parquet(tmp_path / "out").to_arrow()["pid"].to_pylist())


TYPED = """
import pyarrow as pa
import windrow

class ScriptType(pa.ExtensionType):
    def __init__(self):
        super().__init__(pa.int64(), "windrow.tests.script_type")
    def __arrow_ext_serialize__(self):
        return b""
    @classmethod
    def __arrow_ext_deserialize__(cls, storage, serialized):
        return cls()

pa.register_extension_type(ScriptType())

def add(batch):
    more = pa.ExtensionArray.from_storage(ScriptType(), batch["id"].combine_chunks())
    return pa.table(batch).append_column("more", more)

numbers = pa.array(range(20))
rows = pa.table({"id": numbers, "typed": pa.ExtensionArray.from_storage(ScriptType(), numbers)})
pipe = windrow.from_arrow(rows).window(blocks_per_window=1).random_shuffle_each_window(seed=1)
pipe = pipe.options(executor="threads", progress=False)
pipe = pipe.map_batches(add, batch_format="pyarrow", compute=windrow.ActorPool(1))
(batch,) = pipe.iter_batches(batch_size=20, batch_format="pyarrow")
assert batch.schema.types[1:] == [ScriptType()] * 2, batch.schema
print(sorted(batch["typed"].to_pylist()))
"""


def test_types_of_a_script_stay(tmp_path: Path) -> None:
    assert _run_script(tmp_path, TYPED) == str(list(range(20)))


SCRIPT = """
import multiprocessing
import windrow

def double(batch):
    return {"id": batch["id"] * 2}

def read(queue):
    pipe = windrow.range(20).window(blocks_per_window=1).random_shuffle_each_window(seed=1)
    pipe = pipe.options(executor="threads", progress=False).map_batches(double, compute="processes")
    [batch] = pipe.iter_batches(batch_size=20)
    queue.put(sorted(batch["id"].tolist()))

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=read, args=(queue,))
    child.start()
    child.join()
    print(queue.get(timeout=1))
"""


def test_functions_of_a_script_whose_processes_are_spawned(tmp_path: Path) -> None:
    assert _run_script(tmp_path, SCRIPT) == str(list(range(0, 40, 2)))


def _run_script(folder: Path, text: str) -> str:
    script = folder / "script.py"
    script.write_text(text)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert not done.returncode, done.stderr
    return done.stdout.strip()
