"""Philox4x32-10 against its published test vectors."""

from __future__ import annotations

import numpy as np
import pytest

from windrow.shuffle.order.philox import philox


@pytest.mark.parametrize(
    ("key", "high", "low", "words"),
    [
        (0, 0, 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (2**64 - 1, 2**64 - 1, 2**64 - 1, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            0x299F31D0A4093822,
            0x0370734413198A2E,
            0x85A308D3243F6A88,
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_published_vectors(key: int, high: int, low: int, words: str) -> None:
    counters = np.array([low] * 3, np.uint64)
    found = philox(key, np.array([high] * 3, np.uint64), counters)
    assert [" ".join(format(word, "08x") for word in row) for row in found] == [words] * 3
