"""What one of two processes does in the test of JAX on a mesh of two axes: train on batches that are global arrays."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests.end_to_end.mesh_models import GLOBAL_BATCH, RATE, STEPS, Perceptron, make_pipe, report

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def train(data: str, *, model_axis_spans_processes: bool) -> list[float]:
    """The losses of a perceptron whose hidden units lie along the axis ``model``."""
    devices = np.array(jax.devices()).reshape(RANKS, -1)
    mesh = Mesh(devices.T if model_axis_spans_processes else devices, ("data", "model"))
    place: dict[str, Any] = {"rank": RANK, "world_size": RANKS}
    if model_axis_spans_processes:
        place = {"rank": 0, "world_size": 1, "replica": (RANK, RANKS)}
    whole = Perceptron()
    part: Any = PartitionSpec
    layouts = [part("model"), part("model"), part(None, "model"), part()]
    weights = [
        jax.make_array_from_callback(value.shape, NamedSharding(mesh, layout), value.__getitem__)
        for value, layout in zip((each.detach().numpy() for each in whole.parameters()), layouts, strict=True)
    ]

    def loss_of(weights: Any, x: Any, y: Any) -> Any:
        up, up_bias, down, bias = weights
        predicted = jax.nn.relu(x @ up.T + up_bias) @ down.T + bias
        return jnp.mean((predicted[:, 0] - y) ** 2)

    @jax.jit
    def step(weights: Any, x: Any, y: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(weights, x, y)
        return loss, [each - RATE * gradient for each, gradient in zip(weights, gradients, strict=True)]

    losses: list[float] = []
    by_data = NamedSharding(mesh, part("data"))
    with make_pipe(data).shard(**place) as shard:
        rows = GLOBAL_BATCH // place["world_size"]
        for batch in shard.iter_jax_batches(rows, columns=["x", "y"], sharding=by_data):
            assert batch["x"].shape == (GLOBAL_BATCH, whole.up.in_features)
            loss, weights = step(weights, batch["x"], batch["y"])
            losses.append(float(loss))
            if len(losses) == STEPS:
                break
    return losses


def main(data: str, address: str) -> None:
    """Train on the mesh both ways round."""
    warnings.simplefilter("ignore")
    config: Any = jax.config
    config.update("jax_num_cpu_devices", 2)
    config.update("jax_platforms", "cpu")
    jax.distributed.initialize(address, RANKS, RANK)
    for spans in (False, True):
        report(train(data, model_axis_spans_processes=spans))


if __name__ == "__main__":
    main(*sys.argv[1:])
