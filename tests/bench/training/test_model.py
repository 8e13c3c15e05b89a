from __future__ import annotations

import pytest

from bench.data.files import make_table
from bench.training.model import SmallModel
from bench.training.tensors import to_tensors


@pytest.mark.parametrize(("kind", "label"), [("dlrm", "labels"), ("taxi", "total_amount")])
def test_model_learns(kind: str, label: str) -> None:
    table = make_table(kind, 0, 32_768, 0, 0)
    columns = [field.name for field in table.schema if str(field.type) != "string" and field.name != "key"]
    batches = [to_tensors(table.slice(start, 1024), columns) for start in range(0, len(table), 1024)]
    integers = [name for name in columns if str(table.schema.field(name).type) == "int64"]
    model = SmallModel(integers, [name for name in columns if name not in (label, *integers)], label, seed=0)
    model.warm_up()
    losses = [model.step(batch) for batch in batches * 3]
    assert losses[0] > 0.8
    assert sum(losses[-8:]) / 8 < 0.9 * losses[0]
