from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from bench.training.delivered_rows import find_rows, fingerprint_rows, read_fingerprints

LISTS = [[1, 2, 3], [], [7], [1, 2, 3, 4], [50_000, 2, 3, 4, 5], [1, 2, 9, 3]]
TEXTS = [
    "",
    "a",
    "é",
    "a short one",
    "a longer text of words",
    "a longer text of other words",
    "another text of other words",
    "no longer text of other words",
    "an older text of other words",
    "an older text of many other words",
]
WIDE = pa.large_list(pa.int32())
ARRAYS = [np.array(row, np.int64) for row in LISTS]
LIST_FORMS: dict[str, Any] = {
    "list": pa.array(LISTS, pa.list_(pa.int32())),
    "int64": pa.array(LISTS, pa.large_list(pa.int64())),
    "slice": pa.array([[5], *LISTS, [6, 6]], WIDE).slice(1, len(LISTS)),
    "chunks": pa.chunked_array([pa.array(LISTS[:2], WIDE), pa.array([], WIDE), pa.array(LISTS[2:], WIDE)]),
    "offsets": (
        torch.tensor([token for row in LISTS for token in row], dtype=torch.int32),
        torch.tensor([0, 3, 3, 4, 8, 13, 17]),
    ),
    "arrays": ARRAYS,
    "tensors": [torch.from_numpy(row) for row in ARRAYS],
}
TEXT_FORMS: dict[str, Any] = {
    "string": pa.array(TEXTS),
    "slice": pa.array(["before", *TEXTS, "behind"], pa.large_string()).slice(1, len(TEXTS)),
    "chunks": pa.chunked_array([TEXTS[:1], TEXTS[1:]]),
    "python": TEXTS,
}


@pytest.mark.parametrize("form", LIST_FORMS)
def test_lists_have_the_same_fingerprints_in_every_form(form: str) -> None:
    wanted = fingerprint_rows(pa.array(LISTS, WIDE))
    assert len(set(wanted.tolist())) == len(LISTS)
    assert fingerprint_rows(LIST_FORMS[form]).tolist() == wanted.tolist()


@pytest.mark.parametrize("form", TEXT_FORMS)
def test_strings_have_the_same_fingerprints_in_every_form(form: str) -> None:
    wanted = fingerprint_rows(pa.array(TEXTS, pa.large_string()))
    assert len(set(wanted.tolist())) == len(TEXTS)
    assert fingerprint_rows(TEXT_FORMS[form]).tolist() == wanted.tolist()


@pytest.mark.parametrize("texts", [[], [""], ["ab"], ["12345678"]])
def test_little_content_has_fingerprints(texts: list[str]) -> None:
    assert len(fingerprint_rows(pa.array(texts, pa.string()))) == len(texts)


def test_other_types_are_named() -> None:
    with pytest.raises(TypeError, match=r"a column of type struct<a: int64> has no fingerprints"):
        fingerprint_rows(pa.array([{"a": 1}]))


def test_stored_rows_are_found_in_the_order_of_the_files(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("a.parquet", "b.parquet")]
    for path, rows in zip(paths, (LISTS[:2], LISTS[2:]), strict=True):
        pq.write_table(pa.table({"tokens": pa.array(rows, WIDE), "other": rows}), path, row_group_size=1)
    stored = read_fingerprints(paths, "tokens")
    order = [4, 0, 5, 2, 1, 3]
    arrived = fingerprint_rows(pa.array([LISTS[row] for row in order], WIDE))
    assert [rows.tolist() for rows in find_rows([arrived[:4], arrived[4:]], stored)] == [order[:4], order[4:]]


def test_equal_rows_are_counted_and_unknown_ones_are_not_rows() -> None:
    stored = np.array([5, 9, 5, 7], np.uint64)
    arrived = [np.array([5, 7], np.uint64), np.array([5, 1, 9], np.uint64)]
    assert [rows.tolist() for rows in find_rows(arrived, stored)] == [[0, 3], [2, -1, 1]]
    (again,) = find_rows([np.array([5, 5, 5, 9, 9], np.uint64)], stored)
    assert again.tolist() == [0, 2, 2, 1, 1]
