"""Sizes as users write them."""

from __future__ import annotations

from typing import Any

import pytest

from windrow.core.byte_sizes import format_bytes, parse_bytes
from windrow.core.errors import PlanError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (17, 17),
        ("1B", 1),
        ("64MiB", 64 * 2**20),
        ("64 MB", 64 * 10**6),
        ("1.5GiB", 3 * 2**29),
        ("2tib", 2 * 2**40),
        ("0.5kB", 500),
    ],
)
def test_sizes_are_read(text: int | str, size: int) -> None:
    assert parse_bytes(text, "memory_limit") == size


@pytest.mark.parametrize("value", [0, -1, True, 1.5, None, "", "64", "-1MB", "64XB", "MiB", "0GiB", "0.1B"])
def test_values_that_are_not_sizes_are_rejected_by_name(value: Any) -> None:
    with pytest.raises(PlanError, match="memory_limit"):
        parse_bytes(value, "memory_limit")


def test_missing_unit_is_reported_with_a_fix() -> None:
    with pytest.raises(PlanError, match="write '64MiB' or '64MB', or the integer 64"):
        parse_bytes("64", "bytes_per_window")


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (2**20, "1.0 MiB"), (1.4 * 2**40, "1.40 TiB")]
)
def test_sizes_are_written(size: float, text: str) -> None:
    assert format_bytes(size) == text
