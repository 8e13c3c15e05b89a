"""JAX arrays: values, dtypes, global arrays of several processes, resume, clear errors."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import Any

import jax
import numpy as np
import pyarrow as pa
import pytest

import windrow
from tests.conftest import REPOSITORY
from windrow import PlanError

ROWS = 64


def _pipe() -> windrow.DatasetPipeline:
    return windrow.range(ROWS).window(blocks_per_window=1).repeat(2).random_shuffle_each_window(seed=5)


def test_values_and_dtypes() -> None:
    table = pa.table(
        {
            "i": [1, 2, 3],
            "f": [0.5, 1.5, 2.5],
            "b": [True, False, True],
            "h": pa.array([1, 2, 3], pa.int8()),
            "v": pa.array([[1.0, 2.0]] * 3, pa.list_(pa.float32(), 2)),
            "l": [[1, 2]] * 3,
        }
    )
    (batch,) = windrow.from_arrow(table).iter_jax_batches(dtypes={"h": jax.numpy.bfloat16})
    assert all(isinstance(array, jax.Array) for array in batch.values())
    assert {name: str(array.dtype) for name, array in batch.items()} == {
        "i": "int32",
        "f": "float32",
        "b": "bool",
        "h": "bfloat16",
        "v": "float32",
        "l": "int32",
    }
    assert (batch["i"].tolist(), batch["v"].shape, batch["l"].tolist()) == ([1, 2, 3], (3, 2), [[1, 2]] * 3)


def test_every_row_once_over_a_resume_in_the_middle_of_an_epoch() -> None:
    pipe, found = _pipe(), []
    with pipe.iterator() as shard:
        for batch in shard.iter_jax_batches(10):
            found += batch["id"].tolist()
            if len(found) == 30:
                break
        state = shard.state_dict()
    with pipe.iterator(state_dict=state) as shard:
        for epoch in shard.iter_epochs():
            found += [row for batch in epoch.iter_jax_batches(10) for row in batch["id"].tolist()]
    assert sorted(found[:ROWS]) == sorted(found[ROWS:]) == list(range(ROWS))


_SCRIPT = """
import json, sys, jax, windrow
from jax.sharding import Mesh, NamedSharding, PartitionSpec
rank, address = int(sys.argv[1]), sys.argv[2]
jax.distributed.initialize(address, 2, rank)
sharding = NamedSharding(Mesh(jax.devices(), ("data",)), PartitionSpec("data"))
pipe = windrow.range(64).window(blocks_per_window=1).repeat(2).random_shuffle_each_window(seed=5)
shard = pipe.options(executor="threads").shard(rank=rank, world_size=2)
for batch in shard.iter_jax_batches(8, sharding=sharding):
    array = batch["id"]
    assert array.shape == (16,) and len(array.addressable_shards) == 2
    print(json.dumps([[each.index[0].start or 0, each.data.tolist()] for each in array.addressable_shards]))
"""


def test_global_arrays_of_two_processes_are_the_steps() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    flags = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _SCRIPT, str(rank), address],
            cwd=REPOSITORY,
            env=flags,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [each.communicate(timeout=120)[0].splitlines() for each in processes]
    assert [each.returncode for each in processes] == [0, 0]
    steps = []
    for lines in zip(*outputs, strict=True):
        step = np.full(16, -1)
        for start, rows in (part for line in lines for part in json.loads(line)):
            step[start : start + len(rows)] = rows
        steps.append(step.tolist())
    # whatever the number of processes
    whole = _pipe().options(executor="threads").iterator()
    assert steps == [batch["id"].tolist() for batch in whole.iter_batches(16)]


def test_integers_beyond_32_bits_are_an_error_and_not_other_numbers() -> None:
    rows = windrow.from_items([{"x": 2**40}, {"x": 1}])
    with pytest.raises(
        PlanError, match=r"column 'x' \(int64\) has values from 1 to 1,099,511,627,776.*enable_x64"
    ):
        next(rows.iter_jax_batches())
    (batch,) = rows.iter_jax_batches(dtypes=np.float32)
    assert batch["x"].tolist() == [2.0**40, 1.0]


def test_bad_use() -> None:
    rows = windrow.range(5)
    devices: Any = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    assert next(rows.iter_jax_batches(sharding={"id": devices}))["id"].sharding == devices
    for arguments, message in (
        ({"dtypes": "int7"}, "'int7' is not a dtype"),
        ({"sharding": 3}, "must be a jax.sharding.Sharding"),
        ({"dtypes": {"x": "int8"}}, "dtypes names columns that do not exist: 'x'"),
        ({"batch_size": 0}, "batch_size=0"),
    ):
        with pytest.raises(PlanError, match=message):
            next(rows.iter_jax_batches(**arguments))
    with pytest.raises(PlanError, match="tensors cannot hold 't'"):
        next(windrow.from_items([{"t": "a"}]).iter_jax_batches())
    with pytest.raises(PlanError, match=r"between 1 and 2 values.*pad them to one length in map_batches"):
        next(windrow.from_items([{"l": [1]}, {"l": [1, 2]}]).iter_jax_batches())
