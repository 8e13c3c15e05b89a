from __future__ import annotations

from bench.data.generators import make_dlrm
from bench.training.tensors import to_tensors
from bench.training.trainer import SmallModel


def test_model_learns() -> None:
    table = make_dlrm(0, 32_768, 0, 0)
    batches = [to_tensors(table.slice(start, 1024)) for start in range(0, len(table), 1024)]
    inputs = [name for name in table.column_names if name not in ("key", "labels")]
    model = SmallModel(inputs, "labels", seed=0)
    model.warm_up()
    losses = [model.step(batch) for batch in batches * 3]
    assert losses[0] > 0.8
    assert sum(losses[-8:]) / 8 < 0.9 * losses[0]
