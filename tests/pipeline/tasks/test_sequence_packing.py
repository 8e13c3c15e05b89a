"""pack(): what a block's documents become, and what is wrong with arguments and rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from windrow.core.errors import PlanError, TransformError
from windrow.pipeline.tasks.sequence_packing import SequencePacking

LISTS = pa.list_(pa.int32())


def _flat(packing: SequencePacking, table: pa.Table) -> tuple[dict[str, Any], list[int]]:
    tokens, lengths = packing.flatten(table, "here")
    assert lengths.dtype == np.int32
    return tokens.to_pydict(), lengths.tolist()


@pytest.mark.parametrize("kind", [LISTS, pa.large_list(pa.int32())])
def test_documents_end_to_end(kind: pa.DataType) -> None:
    table = pa.table({"t": pa.array([[9], [1, 2], [], [3]], kind), "id": [0, 5, 6, 7], "rest": list("abcd")})
    # sliced: neither offsets nor values begin at 0
    table = table.slice(1)
    assert _flat(SequencePacking(8, "t"), table) == ({"t": [1, 2, 3]}, [2, 0, 1])
    with_eos = SequencePacking(8, ["id", "t"], 0)
    assert _flat(with_eos, table) == ({"id": [5, 5, 5, 7, 7], "t": [1, 2, 0, 3, 0]}, [3, 0, 2])
    chunked = pa.concat_tables([table, table])
    assert _flat(SequencePacking(8, "t"), chunked) == ({"t": [1, 2, 3, 1, 2, 3]}, [2, 0, 1, 2, 0, 1])


def test_lists_of_a_fixed_size() -> None:
    array = pa.array([[7, 8], [1, 2], [3, 4]], pa.list_(pa.uint16(), 2))
    assert _flat(SequencePacking(8, "t", 9), pa.table({"t": array[1:]})) == (
        {"t": [1, 2, 9, 3, 4, 9]},
        [3, 3],
    )


def test_several_columns_of_lists() -> None:
    weights = [[np.float16(0.5), np.float16(1.5)], [np.float16(2.5)]]
    table = pa.table({"t": pa.array([[1, 2], [3]], LISTS), "w": pa.array(weights, pa.list_(pa.float16()))})
    packing = SequencePacking(2, ["t", "w"], {"t": 0, "w": -1})
    assert _flat(packing, table) == ({"t": [1, 2, 0, 3, 0], "w": [0.5, 1.5, -1, 2.5, -1]}, [3, 2])


def test_sequences_are_lists_of_one_size() -> None:
    tokens = pa.record_batch({"t": pa.array([0, 1, 2, 3, 4, 5], pa.uint8()), "s": list("abcdef")})
    found = SequencePacking(2, "t").sequences(tokens[2:])
    assert found.schema.field("t").type == pa.list_(pa.uint8(), 2)
    assert found.to_pydict() == {"t": [[2, 3], [4, 5]], "s": [["c", "d"], ["e", "f"]]}


def test_equal_packings_have_one_identity() -> None:
    assert SequencePacking(8, "t", 0).identity == SequencePacking(np.int64(8), ["t"], 0).identity
    zeros = [SequencePacking(8, "t", {"t": zero}).identity for zero in (0, 0.0, np.int64(0), np.float32(0))]
    assert len(set(zeros)) == 1
    many = [SequencePacking(8, ["t", "u"], eos).identity for eos in ({"t": 0, "u": 1}, {"u": 1, "t": 0})]
    assert len(set(many)) == 1
    others = [
        SequencePacking(8, "t"),
        SequencePacking(8, "t", 1),
        SequencePacking(8, "u", 0),
        SequencePacking(9, "t", 0),
    ]
    assert len({packing.identity for packing in others}) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, "t"), r"seq_len=0\) must be an integer of 1 or more"),
        ((2.5, "t"), r"seq_len=2.5"),
        ((8, []), r"columns=\[\]\) must be a column's name"),
        ((8, 3), r"columns=3\) must be"),
        ((8, ["t", "t"]), r"names a column twice"),
        ((8, "t", "x"), r"eos='x'\) must be a number"),
        ((8, "t", {"u": 0}), r"names 'u', which is not among"),
        ((8, "t", {"t": None}), r"eos=.*None.* must be a number, a dict of numbers"),
    ],
)
def test_wrong_arguments(arguments: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        SequencePacking(*arguments)


@pytest.mark.parametrize(
    ("columns", "eos", "table", "message"),
    [
        ("u", None, {"t": [[1]]}, "there is no column 'u' to pack, but there are 't'"),
        ("t", None, {"t": [1]}, "none of the columns 't' to pack has lists of tokens"),
        (
            ["text", "id"],
            None,
            {"text": ["a"], "id": [1]},
            r"column 'text' is string: pack\(\) takes lists of tokens; make them with tokenize\('text', tokenizer\)",
        ),
        (
            ["t", "id"],
            None,
            {"t": [[1]], "id": ["a"]},
            "column 'id' is string: .*name a document by a number",
        ),
        ("t", None, {"t": [["a"]]}, r"column 't' is list<item: string>: pack\(\) takes lists of numbers"),
        ("t", None, {"t": [[1], None]}, "column 't' has nulls"),
        ("t", None, {"t": [[1, None]]}, "the lists of column 't' hold nulls"),
        (
            ["t", "u"],
            None,
            {"t": [[1]], "u": [[1, 2]]},
            "a row has 1 values in 't' and 2 in 'u'",
        ),
        (["t", "u"], 0, {"t": [[1]], "u": [[1]]}, r"pack\(eos=0\) does not tell the values for 't', 'u'"),
        (["t", "u"], {"t": 0}, {"t": [[1]], "u": [[1]]}, "must have a value for each column of lists"),
        (["t", "u"], {"t": 0, "u": 0}, {"t": [[1]], "u": [1]}, "must have a value for each column of lists"),
        ("t", 0.5, {"t": [[1]]}, "eos=0.5.* is not a value of column 't', which holds int64"),
        ("t", -1, {"t": pa.array([[1]], pa.list_(pa.uint8()))}, "eos=-1.* which holds uint8"),
    ],
)
def test_documents_that_cannot_be_packed(columns: Any, eos: Any, table: Any, message: str) -> None:
    with pytest.raises(TransformError, match=message) as caught:
        SequencePacking(8, columns, eos).flatten(pa.table(table), "file.parquet, row group 3")
    assert "file.parquet, row group 3" in str(caught.value)
