"""States survive other checkpoint formats, and resume identically."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgpack
import numpy as np
import orjson
import pytest
import torch
import yaml
from torch.distributed.checkpoint.state_dict_loader import load as load_checkpoint
from torch.distributed.checkpoint.state_dict_saver import save as save_checkpoint
from torch.distributed.checkpoint.stateful import Stateful

import windrow
from tests.faults.corrupt_files import corrupt_row_groups, write_files
from windrow import DatasetPipeline, Shard, StateError

# older versions of torch find out for themselves, and warn
ALONE = {"no_dist": True} if "no_dist" in inspect.signature(save_checkpoint).parameters else {}

BATCH_ROWS = 7
CORRUPT = (2, 4)
EPOCHS = 2

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is unavailable or uninitialized:UserWarning"),
    # what older versions of torch do while they write and read checkpoints
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:You are using `torch.load` with `weights_only=False`:FutureWarning"),
    pytest.mark.filterwarnings("ignore:a corrupt block is skipped:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
]


@pytest.fixture(params=["whole", "corrupt"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.mkdir()
    write_files(path)
    if request.param == "corrupt":
        corrupt_row_groups(path, *CORRUPT)
    return path


def pipeline(folder: Path) -> DatasetPipeline:
    ds = windrow.read_parquet(str(folder), target_block_bytes=1).window(blocks_per_window=4)
    return ds.repeat(EPOCHS).random_shuffle_each_window(seed=5).options(executor="threads", on_error="skip")


def take(shard: Shard, steps: int) -> dict[str, Any]:
    """The state after some steps of an epoch."""
    batches = shard.iter_batches(BATCH_ROWS)
    for _ in range(steps):
        next(batches)
    state = shard.state_dict()
    batches.close()
    return state


def rest(shard: Shard) -> list[int]:
    return [
        int(x)
        for epoch in shard.iter_epochs()
        for batch in epoch.iter_batches(BATCH_ROWS)
        for x in batch["x"]
    ]


def saved_state(folder: Path) -> dict[str, Any]:
    with pipeline(folder).iterator() as shard:
        return take(shard, 15)


def assert_goes_on(folder: Path, state: Any, saved: dict[str, Any]) -> None:
    with pipeline(folder).iterator(state_dict=saved) as shard:
        expected = rest(shard)
    with pipeline(folder).iterator(state_dict=state) as shard:
        assert shard.state_dict() == saved
        assert rest(shard) == expected
    assert windrow.merge_state_dicts([state, saved]) == saved


def map_values(change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a round trip that converts every value except strings."""

    def passed(state: dict[str, Any]) -> dict[str, Any]:
        return {name: value if isinstance(value, str) else change(value) for name, value in state.items()}

    return passed


TRIPS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "json": lambda state: json.loads(json.dumps(state)),
    "json with floats": lambda state: json.loads(json.dumps(state), parse_int=float),
    "orjson": lambda state: orjson.loads(orjson.dumps(state)),
    "yaml": lambda state: yaml.safe_load(yaml.safe_dump(state)),
    "yaml in one line": lambda state: yaml.safe_load(yaml.safe_dump(state, default_flow_style=True)),
    "msgpack with tuples": lambda state: msgpack.unpackb(msgpack.packb(state), use_list=False),
    "tensors": map_values(lambda value: None if value is None else torch.as_tensor(value)),
    "arrays": map_values(lambda value: None if value is None else np.asarray(value)),
    "NumPy scalars": map_values(lambda value: np.int64(value) if isinstance(value, int) else value),
    "another mapping": MappingProxyType,
}


@pytest.mark.parametrize("trip", TRIPS)
def test_state_survives_round_trip(folder: Path, trip: str) -> None:
    saved = saved_state(folder)
    assert_goes_on(folder, TRIPS[trip](saved), saved)


def test_torch_loads_state_with_weights_only(folder: Path, tmp_path: Path) -> None:
    saved = saved_state(folder)
    path = tmp_path / "checkpoint.pt"
    torch.save({"data": saved, "weight": torch.zeros(3)}, path)
    assert_goes_on(folder, torch.load(path, weights_only=True)["data"], saved)


def test_every_state_has_the_same_keys(folder: Path) -> None:
    pipe = pipeline(folder)
    with pipe.iterator() as shard:
        states = [shard.state_dict(), take(shard, 3)]
        rest(shard)
        states.append(shard.state_dict())
    assert len({tuple(state) for state in states}) == 1
    assert [type(state["corrupt"]) for state in states] == [list] * 3


def test_distributed_checkpoint_of_a_dict(folder: Path, tmp_path: Path) -> None:
    saved = saved_state(folder)
    place = str(tmp_path / "saved")
    save_checkpoint({"model": torch.zeros(2), "data": saved}, checkpoint_id=place, **ALONE)
    with pipeline(folder).iterator() as fresh:
        # only keys that the target has are loaded
        loaded = {"model": torch.ones(2), "data": fresh.state_dict()}
    load_checkpoint(loaded, checkpoint_id=place, **ALONE)
    assert_goes_on(folder, loaded["data"], saved)


def test_distributed_checkpoint_of_a_shard(folder: Path, tmp_path: Path) -> None:
    place = str(tmp_path / "saved")
    pipe = pipeline(folder)
    with pipe.iterator() as shard, pipe.iterator() as other:
        assert isinstance(shard, Stateful)
        batches = shard.iter_batches(BATCH_ROWS)
        for _ in range(15):
            next(batches)
        saved = shard.state_dict()
        save_checkpoint({"data": shard}, checkpoint_id=place, **ALONE)
        load_checkpoint({"data": other}, checkpoint_id=place, **ALONE)
        assert other.state_dict() == saved
        expected = [int(x) for batch in batches for x in batch["x"]]
        assert [int(x) for batch in other.iter_batches(BATCH_ROWS) for x in batch["x"]] == expected


def test_state_of_older_version_without_later_entries_loads(folder: Path) -> None:
    with pipeline(folder).iterator() as shard:
        state = shard.state_dict()
    del state["corrupt"], state["groups"], state["row_choice"]
    counted = {name: value for name, value in state.items() if name != "check"}
    text = json.dumps(counted, sort_keys=True, separators=(",", ":"))
    assert state["check"] == hashlib.sha256(text.encode()).hexdigest()[:16]
    with pipeline(folder).iterator(state_dict=state) as shard:
        assert shard.state_dict() == {**state, "corrupt": [], "groups": "", "row_choice": ""}


@pytest.mark.parametrize(
    "change",
    [
        {"row": True},
        {"row": torch.tensor(True)},
        {"row": np.True_},
        {"row": 1.5},
        {"row": float("nan")},
        {"row": float("inf")},
        {"row": torch.tensor([1, 2])},
        {"row": "49"},
        {"seed": 2.0**60},
        {"corrupt": "2"},
        {"corrupt": {2: 4}},
        {"corrupt": 2},
        {"corrupt": None},
        {"corrupt": [1.5]},
        {"corrupt": [-1]},
        {"corrupt": [[2]]},
    ],
    ids=repr,
)
def test_ambiguous_states_raise(folder: Path, change: dict[str, Any]) -> None:
    (name,) = change
    with pytest.raises(StateError, match=f"the state is corrupt: {name}="):
        pipeline(folder).iterator(state_dict={**saved_state(folder), **change})
