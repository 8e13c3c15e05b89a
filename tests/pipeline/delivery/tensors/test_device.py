"""Staged copies on a device double, whose copies happen as late as they may: batches are right all the same."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import windrow
from windrow.pipeline.delivery.tensors.device import CudaCopies, Mover, Placement, StagedMover

DTYPES = [torch.uint8, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64, torch.bool]


class LateEvent:
    """A copy that happens when something waits for it."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work: Callable[[], None] | None = work
        self._lock = threading.Lock()

    def synchronize(self) -> None:
        with self._lock:
            work, self._work = self._work, None
            if work is not None:
                work()


class LateCopies(CudaCopies):
    """A device in main memory. Its stream does nothing before it has to."""

    def __init__(self) -> None:
        self.pinned: list[int] = []
        self.copied: list[int] = []
        self.handed_over = 0
        self.waited_for: list[int] = []

    def pin(self, size_bytes: int) -> torch.Tensor:
        self.pinned.append(size_bytes)
        return torch.full((size_bytes,), 0xEE, dtype=torch.uint8)

    def copy(self, source: torch.Tensor, convert: Callable[[torch.Tensor], Any]) -> tuple[Any, LateEvent]:
        self.copied.append(len(source))
        tensors = [tensor.clone() for tensor in convert(torch.zeros(len(source), dtype=torch.uint8))]

        def work() -> None:
            for tensor, converted in zip(tensors, convert(source.clone()), strict=True):
                tensor.copy_(converted)

        return tensors, LateEvent(work)

    def hand_over(self, tensors: Any, event: Any) -> None:
        self.handed_over += 1
        event.synchronize()

    def note(self) -> LateEvent:
        at = self.handed_over
        return LateEvent(lambda: self.waited_for.append(at))


def _mover(copies: LateCopies) -> StagedMover:
    return StagedMover(torch.device("cpu"), copies)


@st.composite
def batches(draw: st.DrawFn) -> list[dict[str, torch.Tensor]]:
    """A few batches of the same columns, of other sizes."""
    kinds = draw(st.lists(st.sampled_from(DTYPES), max_size=4))
    widths = [draw(st.sampled_from([(), (3,), (2, 2), (0,)])) for _ in kinds]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    return [
        {
            f"c{number}": torch.randint(0, 2, (rows, *width), generator=generator).to(kind)
            for number, (kind, width) in enumerate(zip(kinds, widths, strict=True))
        }
        for rows in draw(st.lists(st.integers(0, 300), min_size=1, max_size=6))
    ]


@given(batches(), st.dictionaries(st.sampled_from(["c0", "c1", "c2"]), st.sampled_from(DTYPES)))
def test_batches_that_wait_for_the_consumer(found: list[dict[str, torch.Tensor]], casts: Any) -> None:
    casts = {name: dtype for name, dtype in casts.items() if name in found[0]}
    copies = LateCopies()
    mover = _mover(copies)
    moved = [mover.move({name: column.clone() for name, column in batch.items()}, casts) for batch in found]
    for batch, item in zip(found, moved, strict=True):
        expected = {name: tensor.to(casts.get(name, tensor.dtype)) for name, tensor in batch.items()}
        got = mover.finish(item)
        assert list(got) == list(expected)
        for name, tensor in expected.items():
            assert got[name].dtype == tensor.dtype
            assert torch.equal(got[name], tensor)
    assert len(copies.copied) == copies.handed_over == len(found)


class NotedMover(Mover):
    """Notes what crosses to the device."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.crossed: list[torch.dtype] = []

    def _place(self, tensor: torch.Tensor) -> torch.Tensor:
        self.crossed.append(tensor.dtype)
        return super()._place(tensor)


def test_casts_where_fewer_bytes_cross_without_staging_too() -> None:
    columns = {"image": torch.zeros((2, 3), dtype=torch.uint8), "x": torch.zeros(2, dtype=torch.float64)}
    mover = NotedMover()
    moved = mover.move(columns, {"image": torch.float32, "x": torch.float32})
    assert {name: tensor.dtype for name, tensor in moved.items()} == dict.fromkeys(columns, torch.float32)
    # the one that has crossed is there already when all are moved
    assert mover.crossed == [torch.uint8, torch.float32, torch.float32]


def test_memory_is_pinned_once() -> None:
    copies = LateCopies()
    mover = _mover(copies)
    for _ in range(10):
        mover.finish(mover.move({"x": torch.arange(1000), "y": torch.arange(1000.0)}))
    assert copies.pinned == [16384, 16384]
    assert copies.copied == [8192 + 4096] * 10


@pytest.mark.parametrize(
    ("stored", "dtype", "moved"),
    [
        (torch.uint8, torch.float32, 512),
        (torch.float64, torch.float32, 2048),
        (torch.int64, torch.int32, 2048),
        (torch.int32, torch.float32, 2048),
    ],
)
def test_casts_happen_where_fewer_bytes_cross(stored: Any, dtype: Any, moved: int) -> None:
    copies = LateCopies()
    mover = _mover(copies)
    item = mover.move({"x": torch.arange(512).to(stored)}, {"x": dtype})
    assert copies.copied == [moved]
    assert mover.size_of(item) == moved + (0 if torch.float64 == stored or dtype == torch.int32 else 2048)
    assert torch.equal(mover.finish(item)["x"], torch.arange(512).to(stored).to(dtype))


def test_a_loop_that_enqueues_many_steps_waits_for_the_device() -> None:
    copies = LateCopies()
    mover = _mover(copies)
    for _ in range(10):
        mover.finish(mover.move({"x": torch.arange(8)}))
    # the copy that follows the fifth one taken waits until the device has worked on the first, and so on
    assert copies.waited_for == [1, 2, 3, 4, 5]


def test_tensors_that_are_more_than_memory_stay_what_they_are() -> None:
    class Image(torch.Tensor):
        pass

    given = {
        "image": torch.zeros(2, 3).as_subclass(Image),
        "channels": torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "weight": torch.ones(2, requires_grad=True),
        "plain": torch.ones(2),
    }
    copies = LateCopies()
    mover = _mover(copies)
    got = mover.finish(mover.move(given))
    assert copies.copied == [256]
    assert type(got["image"]) is Image
    assert got["channels"].stride() == given["channels"].stride()
    assert got["weight"].requires_grad
    assert torch.equal(got["plain"], given["plain"])


def _documents(rows: int) -> windrow.DatasetPipeline:
    table = pa.table(
        {
            "x": np.arange(rows),
            "y": np.arange(rows) / 3,
            "v": pa.array([[row] * (row % 4) for row in range(rows)], pa.list_(pa.int32())),
        }
    )
    return windrow.from_arrow(table).repeat(2).random_shuffle_each_window(seed=5).options(progress=False)


def _collate(batch: dict[str, Any]) -> Any:
    x = torch.as_tensor(batch["x"])
    return {"pair": (x, [x + 1]), "sparse": torch.eye(len(x)).to_sparse(), "rows": len(x), "same": x}


CALLS: dict[str, Callable[..., Any]] = {
    "columns": lambda pipe, **to: pipe.iter_torch_batches(7, ragged="pad", dtypes={"y": torch.float32}, **to),
    "many batches at once": lambda pipe, **to: pipe.map_batches(_numbers).iter_torch_batches(7, **to),
    "offsets": lambda pipe, **to: pipe.iter_torch_batches(30, ragged="offsets", dtypes=torch.float64, **to),
    "nested": lambda pipe, **to: pipe.iter_torch_batches(30, ragged="nested", **to),
    "collate_fn": lambda pipe, **to: pipe.iter_torch_batches(30, collate_fn=_collate, **to),
    "nothing ahead": lambda pipe, **to: pipe.iter_torch_batches(30, ragged="pad", prefetch_batches=0, **to),
    "to_torch": lambda pipe, **to: pipe.map_batches(_numbers).to_torch(label_column="x", batch_size=9, **to),
}


def _numbers(batch: dict[str, Any]) -> dict[str, Any]:
    return {"x": batch["x"], "y": batch["y"], "z": -batch["y"]}


@pytest.mark.parametrize("name", CALLS)
def test_iterators_deliver_what_they_do_without_a_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call, pipe = CALLS[name], _documents(1000)
    expected = [_leaves(batch) for batch in call(pipe)]
    copies = LateCopies()
    monkeypatch.setattr(Placement, "mover", lambda self: _mover(copies))
    found = [_leaves(batch) for batch in call(pipe, device="cpu")]
    assert len(found) == len(expected)
    assert copies.handed_over == len(found)
    assert len(copies.copied) <= len(found)
    for got, want in zip(found, expected, strict=True):
        assert len(got) == len(want)
        assert all(map(_equal, got, want))


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in _leaves(item)]
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]


def _equal(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor):
        return bool(one == other)
    assert (one.dtype, one.layout) == (other.dtype, other.layout)
    if one.is_nested:
        return all(map(torch.equal, one.unbind(), other.unbind()))
    return torch.equal(one.to_dense(), other.to_dense()) if one.is_sparse else torch.equal(one, other)
