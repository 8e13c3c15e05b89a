"""What `map_batches` takes: options are checked where a stage is made, which is a value."""

from __future__ import annotations

import functools
import pickle
from typing import Any

import pytest

from windrow.core.errors import PlanError
from windrow.pipeline.tasks.map_batches import MapBatches


def identity(batch: Any) -> Any:
    return batch


async def _awaits(batch: Any) -> Any:
    return batch


def _yields(batch: Any) -> Any:
    yield batch


class _Callable:
    def __call__(self, batch: Any) -> Any:
        return batch


@pytest.mark.parametrize(
    ("fn", "options", "match"),
    [
        (3, {}, "map_batches got 3, which cannot be called"),
        (int, {}, "map_batches got the class int, whose objects have no method __call__"),
        (_awaits, {}, "map_batches got _awaits, which yields or awaits"),
        (_yields, {}, "map_batches got _yields, which yields or awaits"),
        (functools.partial(_yields), {}, "map_batches got _yields, which yields or awaits"),
        (identity, {"batch_format": "arrow"}, "batch_format='arrow' is unknown"),
        (identity, {"batch_size": 0}, "batch_size=0 must be an integer of 1 or more"),
        (identity, {"batch_size": 1.5}, "batch_size=1.5 must be"),
        (identity, {"batch_size": True}, "batch_size=True must be"),
        (identity, {"fn_args": 3}, "fn_args=3 must be a tuple"),
        (identity, {"fn_kwargs": [1]}, r"fn_kwargs=\[1\] must be a dict"),
        (identity, {"preserves_rows": None}, "preserves_rows=None must be True or False"),
    ],
)
def test_bad_options(fn: Any, options: dict[str, Any], match: str) -> None:
    with pytest.raises(PlanError, match=match):
        MapBatches(fn, **options)


def test_map_copies_its_arguments_and_pickles_by_value() -> None:
    kwargs = {"k": [1]}
    stage = MapBatches(identity, fn_args=(1,), fn_kwargs=kwargs)
    kwargs["more"] = []
    assert stage.fn_kwargs == {"k": [1]}
    assert pickle.loads(pickle.dumps(stage)) == stage
    assert hash(stage) == hash(MapBatches(identity, fn_args=(1,), fn_kwargs={"k": [1]}))
    assert MapBatches(_Callable()).name == "map_batches(_Callable)"
