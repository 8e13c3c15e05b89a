"""What writes with mode="resume" take for the same transforms: the same code and arguments, as far as can be told."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windrow
from tests.io.files import write
from windrow.core.errors import PlanError, TransformError
from windrow.dataset.write.write_job import digest_stage
from windrow.pipeline.tasks.map_batches import MapBatches


@pytest.fixture
def numbers(tmp_path: Path) -> windrow.Dataset:
    for at in range(4):
        write(tmp_path / "in" / f"{at}.parquet", pa.table({"x": np.arange(at * 10, at * 10 + 10)}))
    return windrow.read_parquet(tmp_path / "in").options(executor="threads")


@dataclass(frozen=True)
class _Shift:
    by: Any = 0
    token: str = field(default="", repr=False)
    unset: Any = field(init=False)

    def __call__(self, batch: Any) -> Any:
        return {"x": batch["x"] + 1}


class _Kind(Enum):
    ONE = 1
    TWO = 2


@dataclass
class _Options:
    rate: float


def _digest(value: Any) -> str:
    return digest_stage(MapBatches(_Shift(value)))


def _scaling(factor: int) -> Callable[[Any], Any]:
    return lambda batch: {"x": batch["x"] * factor}


def _pairs() -> Iterator[Any]:
    yield 1, 2
    yield "a", b"a"
    yield _Kind.ONE, _Kind.TWO
    yield {"rate": 1}, {"rate": 2}
    yield {"a", "b"}, {"a", "c"}
    yield np.arange(4), np.arange(4) + 1
    yield np.zeros(2, "M8[s]"), np.ones(2, "M8[s]")
    yield (1, [2]), (1, [3])
    yield _scaling(1), _scaling(2)
    yield functools.partial(_scaling, 1), functools.partial(_scaling, 2)
    yield _Options, _Kind
    yield _Shift(1), _Shift(2)
    yield _Shift(_Shift(1)), _Shift(_Shift(2))
    yield list(range(10_000)), [*range(9_999), 0]


@pytest.mark.parametrize(("one", "other"), list(_pairs()))
def test_arguments_that_differ_are_other_transforms(one: Any, other: Any) -> None:
    assert _digest(one) != _digest(other)
    assert _digest(one) == _digest(one)


def test_what_cannot_be_told_or_is_hidden_is_the_same() -> None:
    assert _digest(object()) == _digest(object())
    assert digest_stage(MapBatches(_Shift(1, "first"))) == digest_stage(MapBatches(_Shift(1, "second")))
    # that of an object which can change is not compared: it can hold what an attempt has loaded
    assert _digest(_Options(1.0)) == _digest(_Options(2.0))


def test_objects_that_refer_to_themselves_and_share_much_have_a_digest() -> None:
    ring: list[Any] = []
    ring += [ring] * 3
    assert _digest(ring) == _digest(ring)
    shared: Any = (1,)
    for _ in range(200):
        shared = (shared, shared)
    other: Any = (2,)
    for _ in range(200):
        other = (other, other)
    assert _digest(shared) != _digest(other)

    def recursive(depth: int) -> int:
        return 0 if depth == 0 else recursive(depth - 1)

    assert _digest(recursive) == _digest(recursive)


def test_an_object_that_has_changed_in_the_first_attempt_goes_on(
    numbers: windrow.Dataset, tmp_path: Path
) -> None:
    @dataclass
    class Counting:
        calls: int = 0
        fails: bool = True

        def __call__(self, batch: Any) -> Any:
            self.calls += 1
            if self.fails and batch["x"][0] == 20:
                raise OSError("interrupted")
            return batch

    fn = Counting()
    with pytest.raises(TransformError, match="interrupted"):
        numbers.map_batches(fn).write_parquet(tmp_path / "out", mode="resume")
    fn.fails = False
    assert numbers.map_batches(fn).write_parquet(tmp_path / "out", mode="resume").rows == 40


def test_functions_of_groups_are_compared(numbers: windrow.Dataset, tmp_path: Path) -> None:
    numbers.groupby("x").map_groups(_scaling(2)).write_parquet(tmp_path / "out", mode="resume")
    with pytest.raises(PlanError, match="does not belong to one, but to one with other"):
        numbers.groupby("x").map_groups(_scaling(3)).write_parquet(tmp_path / "out", mode="resume")


def test_arguments_of_ready_made_transforms_are_compared(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    from tests.pipeline.tasks.media.images import encode, picture

    images = windrow.from_arrow(pa.table({"image": pa.array([encode(picture(1))], pa.binary())}))
    images = images.options(executor="threads")
    images.decode_images("image", size=8).write_parquet(tmp_path / "out", mode="resume")
    images.decode_images("image", size=8).write_parquet(tmp_path / "out", mode="resume")
    with pytest.raises(PlanError, match="to one with other transforms: give"):
        images.decode_images("image", size=8, crop="center").write_parquet(tmp_path / "out", mode="resume")


def test_names_that_only_look_alike_are_not_of_a_write(numbers: windrow.Dataset, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / f"image-{'0a' * 16}.jpg").touch()
    with pytest.raises(PlanError, match=r"\.jpg does not belong to one: give another path"):
        numbers.write_parquet(tmp_path / "out", mode="resume")
