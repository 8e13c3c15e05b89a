"""What a task spends on the columns of a part counts as decoding, whichever method decodes them."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from windrow.core.phase_clock import PhaseClock, measuring
from windrow.core.source import ScatteringPart
from windrow.pipeline.tasks.task_profile import timed_parts

METHODS = [name for name, _ in inspect.getmembers(ScatteringPart, inspect.isfunction) if name[0] != "_"]


class _Part:
    """A part whose methods do nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args: name


@pytest.mark.parametrize("method", METHODS)
def test_every_way_to_decode_counts_as_decoding(method: str) -> None:
    clock, parts = PhaseClock(), [_Part()]
    with measuring(clock, "shuffle"):
        (part,) = timed_parts(parts)
        clock.seconds.clear()
        assert getattr(part, method)([]) == method
    assert sorted(clock.seconds) == ["decode", "shuffle"]


def test_nested_columns_are_among_them() -> None:
    assert {"select", "scatter_values", "scatter_text", "decode_nested"} <= set(METHODS)
