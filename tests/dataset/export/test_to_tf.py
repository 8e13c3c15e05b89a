"""``to_tf``: rows as a ``tf.data.Dataset``.

Each test that imports TensorFlow runs in its own process: TensorFlow and the other TFRecord reader of the
tests register the same messages, and protobuf rejects the second registration in a process.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import windrow
from tests.dataset.same_rows_sources import make_rows
from windrow import PlanError


def _alone(check: Callable[[], None]) -> None:
    if find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed")
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as processes:
        processes.submit(check).result(timeout=300)


def test_several_label_columns_raise() -> None:
    dataset = windrow.from_arrow(make_rows(5))
    with pytest.raises(PlanError, match=r"label_column=\['x', 'flag'\] .* For several labels, join"):
        dataset.to_tf(label_column=["x", "flag"])  # type: ignore[arg-type]


@pytest.mark.nightly
def test_element_spec_and_every_row() -> None:
    _alone(_check_rows)


@pytest.mark.nightly
def test_columns_that_tensors_cannot_hold_raise() -> None:
    _alone(_check_refusals)


@pytest.mark.nightly
def test_each_iteration_over_a_shard_is_its_next_epoch() -> None:
    _alone(_check_shards)


def _check_rows() -> None:
    tf: Any = import_module("tensorflow")
    dataset = windrow.from_arrow(make_rows(50), target_block_bytes=300)
    found = dataset.to_tf(label_column="flag", batch_size=8)
    features, label = found.element_spec
    assert features["vector"].shape.as_list() == [None, 3]
    assert (features["x"].dtype, label.dtype) == (tf.int64, tf.uint8)
    for _ in range(2):  # each iteration is a pass
        batches = list(found)
        assert [len(labels) for _, labels in batches] == [8] * 6 + [2]
        assert np.concatenate([b["x"].numpy() for b, _ in batches]).tolist() == list(range(50))
    text = windrow.from_items([{"t": "a", "x": 1}, {"t": "ü", "x": 2}]).to_tf(feature_columns=["t"])
    assert [v.decode() for v in next(iter(text))["t"].numpy()] == ["a", "ü"]
    pipe = dataset.window(blocks_per_window=2).repeat(3).random_shuffle_each_window(seed=3)
    pipe = pipe.options(executor="threads", progress=False)
    epochs = list(pipe.to_tf(feature_columns=["x"], batch_size=50, drop_last=True))
    assert len(epochs) == 3
    model_input: Any = epochs[0]["x"]
    assert sorted(model_input.numpy().tolist()) == list(range(50))


def _check_shards() -> None:
    tf: Any = import_module("tensorflow")
    pipe = windrow.from_arrow(make_rows(50), target_block_bytes=300).window(blocks_per_window=2).repeat(4)
    pipe = pipe.random_shuffle_each_window(seed=3).options(executor="threads", progress=False)
    shards = pipe.split(2)
    epochs = [shard.to_tf(feature_columns=["x"], label_column="flag", batch_size=8) for shard in shards]
    taken: list[list[int]] = [[], []]
    for number, data in enumerate(epochs):
        for features, _ in data.take(2):  # leaves the epoch early
            assert features["x"].dtype == tf.int64
        for _ in range(2):
            taken[number] += [int(x) for features, _ in data for x in features["x"].numpy()]
    for epoch in range(2):
        half = slice(epoch * 25, (epoch + 1) * 25)
        assert sorted(taken[0][half] + taken[1][half]) == list(range(50))
    # model.fit takes one epoch an iteration, a resumed shard the rest of its epoch
    state = shards[0].state_dict()
    assert (state["epoch"], state["row"]) == (3, 0)
    with pipe.iterator(state_dict=state) as rest:
        keras: Any = tf.keras
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile(loss="mse")
        history = model.fit(rest.to_tf(feature_columns=["x"], label_column="flag").map(_as_matrix), verbose=0)
        assert len(history.history["loss"]) == 1
        assert rest.state_dict()["epoch"] == 4


def _as_matrix(features: Any, label: Any) -> Any:
    tf: Any = import_module("tensorflow")
    return tf.cast(features["x"][:, None], tf.float32), label


def _check_refusals() -> None:
    gaps = windrow.from_items([{"x": 1, "t": "a"}, {"x": None, "t": None}])
    with pytest.raises(PlanError, match="1 null"):
        gaps.to_tf(feature_columns=["x"])
    with pytest.raises(PlanError, match="do not exist"):
        gaps.to_tf(label_column="y")
    with pytest.raises(Exception, match="column 't' has nulls"):
        list(gaps.to_tf(feature_columns=["t"]))
