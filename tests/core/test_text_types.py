from __future__ import annotations

import numpy as np
import pytest

import windrow

TEXTS = ["a\0b", "", "c", "\0d"]


@pytest.mark.parametrize("kind", ["U", "S", ">U"])
def test_a_zero_inside_a_string_ends_nothing(kind: str) -> None:
    values = np.array(TEXTS).astype(kind)
    expected = [text if "U" in kind else text.encode() for text in TEXTS]
    assert [row["s"] for row in windrow.from_numpy({"s": values}).take()] == expected
    mapped = windrow.range(4).map_batches(lambda batch: {"s": values[batch["id"]]})
    assert [row["s"] for row in mapped.take()] == expected
