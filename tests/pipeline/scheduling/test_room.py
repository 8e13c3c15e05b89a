"""What may be held, once tasks put out more than was expected."""

from __future__ import annotations

import pytest

from windrow.pipeline.scheduling.events import Finished, Limits, Part, Place, Stage, Work
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


def note(limits: Room, part: Part, *slice_bytes: int, unpacked: int | None = None) -> None:
    limits.measure(part, Finished(Work(0, 0, 0, 0, 0), 10, slice_bytes, unpacked))


def test_outputs_have_all_until_tasks_exceed_what_was_expected() -> None:
    limits = room(beside=200)
    assert (limits.growth, limits.limit_bytes, limits.expect(10)) == (1.0, 1000, 10)
    note(limits, Part(10, 100), 40, 40)
    assert (limits.growth, limits.limit_bytes, limits.expect(10)) == (1.0, 1000, 10)
    note(limits, Part(10, 100), 420)
    assert (limits.growth, limits.expect(10)) == (2.5, 25)
    assert limits.limit_bytes == 700
    assert limits.fits(700)
    assert not limits.fits(701)


def test_words_that_were_to_be_packed_and_are_not_take_nothing_from_beside() -> None:
    limits = room(beside=200)
    note(limits, Part(10, 100, 800), 800, unpacked=800)
    assert (limits.growth, limits.held_growth, limits.limit_bytes) == (1.0, 8.0, 1000)
    assert limits.expect(10) == 80


def test_rows_that_grow_are_seen_however_well_they_pack() -> None:
    limits = room(beside=200)
    note(limits, Part(10, 100), 50, unpacked=300)
    assert (limits.growth, limits.held_growth, limits.limit_bytes) == (3.0, 1.0, 600)
    assert limits.expect(10) == 10


@pytest.mark.parametrize(("memory", "told"), [(1024, "1.0 KiB are free"), (50, "0 B are free")])
def test_a_refusal_names_what_is_free(memory: int, told: str) -> None:
    limits = room(memory=memory, beside=0 if memory == 1024 else 100)
    note(limits, Part(10, 100), 300)
    parts = [Part(10, 1000)] * 4
    window = WindowState(0, 3, 0, parts=parts, stages=(Stage("map", True),), slices=1, deal=Deal(1, 1))
    text = limits.refuse(window)
    assert told in text
    assert ("About 1 of its 4 parts would fit" in text) == (memory == 1024)
