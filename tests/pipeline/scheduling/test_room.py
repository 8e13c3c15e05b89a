"""What may be held, once tasks put out more than was expected."""

from __future__ import annotations

import pytest

from windrow.pipeline.scheduling.events import Limits, Part, Place, Stage
from windrow.pipeline.scheduling.room import Room
from windrow.pipeline.scheduling.window import WindowState
from windrow.shuffle.deal import Deal


def room(*, memory: int = 1000, beside: int = 0) -> Room:
    return Room(
        Limits(
            shards=(0,),
            start=Place(0, 0),
            stop_epoch=None,
            slots=1,
            memory_bytes=memory,
            prefetch_windows=1,
            crosses_epochs=True,
            slices=1,
            patience_seconds=5.0,
            beside_bytes=beside,
        )
    )


def test_outputs_have_all_until_tasks_exceed_what_was_expected() -> None:
    limits = room(beside=200)
    assert (limits.growth, limits.limit_bytes, limits.expect(10)) == (1.0, 1000, 10)
    limits.measure(100, 80)
    assert (limits.growth, limits.limit_bytes, limits.expect(10)) == (1.0, 1000, 10)
    limits.measure(100, 420)
    assert (limits.growth, limits.expect(10)) == (2.5, 25)
    assert limits.limit_bytes == 700
    assert limits.fits(700)
    assert not limits.fits(701)


@pytest.mark.parametrize(("memory", "told"), [(1024, "1.0 KiB are free"), (50, "0 B are free")])
def test_a_refusal_names_what_is_free(memory: int, told: str) -> None:
    limits = room(memory=memory, beside=0 if memory == 1024 else 100)
    limits.measure(100, 300)
    parts = [Part(10, 1000)] * 4
    window = WindowState(0, 3, 0, parts=parts, stages=(Stage("map", True),), slices=1, deal=Deal(1, 1))
    text = limits.refuse(window)
    assert told in text
    assert ("About 1 of its 4 parts would fit" in text) == (memory == 1024)
