"""Columns of JSON whose values have several kinds are read as text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from tests.io.formats.lines_of import JSON_TEXTS, all_rows, write_files
from tests.laws.examples import examples

CHAT = (
    b'{"c": "hi \\"you\\""}\n{"c": [{"type": "text",  "text": "h\xc3\xa9[\\"]"}]}\n'
    b'{"c": null}\n{"c": {"n": 1.10}}\n{"c": 7}\n'
)
CHAT_TEXTS = ['hi "you"', '[{"type": "text",  "text": "hé[\\"]"}]', None, '{"n": 1.10}', "7"]


def test_values_of_several_kinds_are_text(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.jsonl": CHAT})
    with pytest.raises(
        windrow.SourceError, match=r"a\.jsonl.*changed from string to array.*dtypes=\{'c': pa\.string\(\)\}"
    ):
        windrow.read_json(tmp_path)
    for kind in (pa.string(), pa.large_string()):
        ds = windrow.read_json(tmp_path, dtypes={"c": kind})
        assert [row["c"] for row in all_rows(ds)] == CHAT_TEXTS
    write_files(tmp_path, {"a.jsonl": b'{"c": "hi"}\n', "b.jsonl": b'{"c": [1]}\n'})
    with pytest.raises(
        windrow.SourceError, match=r"column 'c' is list.*pa\.string\(\), which keeps the JSON text"
    ):
        windrow.read_json(tmp_path)


def test_nested_values_of_several_kinds_are_text(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "user", "content": [{"type": "image"}]}]
    rows = [{"id": 1, "m": messages}, {"id": 2, "m": []}, {"id": 3, "m": None}]
    write_files(tmp_path, {"a.json": json.dumps(rows).encode()})
    kind = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
    found = all_rows(windrow.read_json(tmp_path, dtypes={"m": kind}))
    assert found[0]["m"] == [messages[0], {"role": "user", "content": '[{"type": "image"}]'}]
    assert [row["id"] for row in found] == [1, 2, 3]
    text = all_rows(windrow.read_json(tmp_path, dtypes={"m": pa.string()}))
    assert [row["m"] for row in text] == [json.dumps(messages), "[]", None]


def test_text_of_values_is_valid_json(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.jsonl": b'{"c": "a"}\n{"c": [1,,2]}\n'})
    with pytest.raises(windrow.SourceError, match=r"a\.jsonl"):
        windrow.read_json(tmp_path, dtypes={"c": pa.string()})


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | JSON_TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(JSON_TEXTS, inner, max_size=3),
    max_leaves=6,
)


@examples(50)
@given(
    st.lists(
        st.fixed_dictionaries({"a": JSON_VALUES, "o": st.fixed_dictionaries({"b": JSON_VALUES})}), max_size=5
    ),
    st.sampled_from([(", ", ": "), (",", ":"), (" ,  ", " : ")]),
    st.booleans(),
)
def test_text_of_values_holds_the_values(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], separators: tuple[str, str], ascii: bool
) -> None:
    lines = [json.dumps(row, separators=separators, ensure_ascii=ascii) + "\n" for row in rows]
    folder = tmp_path_factory.mktemp("json")
    write_files(folder, {"a.jsonl": "".join(lines).encode()})
    kinds = {"a": pa.string(), "o": pa.struct([("b", pa.string())])}
    found = all_rows(windrow.read_json(folder, dtypes=kinds))
    for row, kept in zip(rows, found, strict=True):
        for value, text in ((row["a"], kept["a"]), (row["o"]["b"], kept["o"]["b"])):
            assert value == text if value is None or isinstance(value, str) else value == json.loads(text)
