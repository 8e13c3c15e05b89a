"""tokenize: equal to the tokenizers' own calls, from every kind of tokenizer, with pack, and its errors."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from tests.laws.examples import examples
from windrow.core.errors import PlanError, TransformError
from windrow.pipeline.tasks.media.tokenize_text import TokenizerText, TokenizeText

tokenizers = pytest.importorskip("tokenizers")

TEXTS = ["the cat sat on the mat", "", "a dog", "the dog and the cat", "mat " * 30, "unknown ☃ signs", "on"]


def train() -> Any:
    """A small tokenizer that puts [CLS] and [SEP] around a text."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    special = ["[UNK]", "[PAD]", "[CLS]", "[SEP]"]
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=80, special_tokens=special, show_progress=False)
    made.train_from_iterator(TEXTS, trainer)
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return made


TOKENIZER = train()


def dataset(texts: Any = TEXTS, kind: Any = None) -> windrow.Dataset:
    column = pa.array(texts, kind or pa.string())
    return windrow.from_arrow(pa.table({"row": np.arange(len(texts)), "text": column}), target_block_bytes=60)


def ids(ds: windrow.Dataset) -> Any:
    return ds.to_arrow()["input_ids"].to_pylist()


@examples(20)
@given(
    texts=st.lists(st.none() | st.text("catdogmn ☃", max_size=20), min_size=1, max_size=12),
    adds=st.booleans(),
    max_length=st.none() | st.integers(3, 8),
    batch_size=st.none() | st.integers(1, 5),
    kind=st.sampled_from([pa.string(), pa.large_string()]),
)
def test_ids_are_those_of_each_text(
    texts: list[str | None], adds: bool, max_length: int | None, batch_size: int | None, kind: Any
) -> None:
    plain = train()
    if max_length is not None:
        plain.enable_truncation(max_length)
    expected = [None if text is None else plain.encode(text, add_special_tokens=adds).ids for text in texts]
    made = dataset(texts, kind).tokenize(
        "text", TOKENIZER, add_special_tokens=adds, max_length=max_length, batch_size=batch_size
    )
    found = made.to_arrow()
    assert found["input_ids"].to_pylist() == expected
    assert found.schema.names == ["row", "input_ids"]
    assert found.schema.field("input_ids").type == pa.list_(pa.int32())
    found["input_ids"].validate(full=True)


def test_padding_gives_arrays_of_one_length_and_masks() -> None:
    for side in ("right", "left"):
        own = train()
        own.enable_padding(length=8, pad_id=1, pad_token="[PAD]", direction=side)
        own.enable_truncation(8)
        expected = own.encode_batch(TEXTS)
        made = dataset().tokenize("text", own, max_length=8, padding="max_length", attention_mask="mask")
        batch = made.take_batch()
        assert batch["input_ids"].tolist() == [one.ids for one in expected]
        assert batch["mask"].tolist() == [one.attention_mask for one in expected]
        assert batch["input_ids"].dtype == np.int32
        assert batch["mask"].dtype == np.int8
        (tensors,) = made.drop_columns("row").iter_torch_batches(batch_size=len(TEXTS))
        assert tuple(tensors["input_ids"].shape) == (len(TEXTS), 8)
    padded = dataset(["a", None]).tokenize("text", TOKENIZER, max_length=4, padding="max_length", pad_id=7)
    assert ids(padded) == [[2, TOKENIZER.token_to_id("a"), 3, 7], None]
    masked = dataset().tokenize("text", TOKENIZER, attention_mask=True).to_arrow()
    assert masked["attention_mask"].to_pylist() == [[1] * len(row) for row in masked["input_ids"].to_pylist()]


def test_settings_of_the_tokenizer_do_not_cut_or_pad() -> None:
    own = train()
    own.enable_truncation(2, direction="left")
    own.enable_padding(length=20)
    last = [row[-3:] for row in ids(dataset().tokenize("text", own, add_special_tokens=False))]
    assert ids(dataset().tokenize("text", own, max_length=3, add_special_tokens=False)) == last
    assert ids(dataset().tokenize("text", own)) == ids(dataset().tokenize("text", TOKENIZER))
    assert own.truncation["max_length"] == 2


@pytest.mark.parametrize("keep", [False, True])
def test_the_text_stays_if_asked(keep: bool) -> None:
    made = dataset().tokenize("text", TOKENIZER, output_column="ids", keep_text=keep).to_arrow()
    assert made.schema.names == ["row", *["text"][: int(keep)], "ids"]
    replaced = dataset().tokenize("text", TOKENIZER, output_column="text").to_arrow()
    assert replaced.schema.names == ["row", "text"]
    assert replaced.schema.field("text").type == pa.list_(pa.int32())


def test_files_and_directories_of_tokenizers(tmp_path: Path) -> None:
    TOKENIZER.save(str(tmp_path / "tokenizer.json"))
    expected = ids(dataset().tokenize("text", TOKENIZER))
    assert ids(dataset().tokenize("text", tmp_path / "tokenizer.json")) == expected
    assert ids(dataset().tokenize("text", str(tmp_path))) == expected
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(PlanError, match=r"cannot be loaded .*give a file tokenizer\.json"):
        dataset().tokenize("text", tmp_path / "broken.json")


def test_tokenizers_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=train(),
        pad_token="[PAD]",
        unk_token="[UNK]",
        padding_side="left",
        truncation_side="left",
    )
    expected = fast(TEXTS)["input_ids"]
    assert ids(dataset().tokenize("text", fast)) == expected
    cut = fast(TEXTS, truncation=True, max_length=6, padding="max_length")
    made = (
        dataset().tokenize("text", fast, max_length=6, padding="max_length", attention_mask=True).to_arrow()
    )
    assert made["input_ids"].to_pylist() == cut["input_ids"]
    assert made["attention_mask"].to_pylist() == cut["attention_mask"]
    bare = fast(TEXTS, add_special_tokens=False)["input_ids"]
    assert ids(dataset().tokenize("text", fast, add_special_tokens=False)) == bare


class Letters:
    """A tokenizer in Python, as `transformers` has them: an id for each letter."""

    padding_side = "right"
    pad_token_id = 0

    def convert_tokens_to_ids(self, token: str) -> int:
        return ord(token)

    def __call__(
        self, texts: list[str], *, truncation: bool, max_length: int | None, **options: Any
    ) -> dict[str, Any]:
        assert not options["padding"]
        return {"input_ids": [[ord(letter) for letter in text][:max_length] for text in texts]}


def test_tokenizers_in_python() -> None:
    made = dataset(["ab", None, ""]).tokenize("text", Letters(), max_length=3, padding="max_length")
    assert ids(made) == [[97, 98, 0], None, [0, 0, 0]]


def test_ids_are_packed_after_the_shuffle() -> None:
    pipe = dataset(TEXTS * 5).tokenize("text", TOKENIZER).window(blocks_per_window=3)
    pipe = pipe.random_shuffle_each_window(seed=3).pack(8, columns=["input_ids"], eos=3)
    batches = list(pipe.iter_batches(batch_size=4))
    tokens = np.concatenate([batch["input_ids"].reshape(-1) for batch in batches])
    lengths = [len(one.ids) for one in TOKENIZER.encode_batch(TEXTS)]
    assert len(tokens) == 5 * sum(length + 1 for length in lengths) // 8 * 8


def test_functions_can_be_pickled_and_compared() -> None:
    (stage,) = dataset().tokenize("text", TOKENIZER)._plan.maps
    copy = pickle.loads(pickle.dumps(stage))
    assert copy == stage
    assert hash(copy.fn) == hash(stage.fn)
    assert isinstance(copy.fn, TokenizeText)
    assert isinstance(copy.fn.tokenizer, TokenizerText)
    table = dataset().to_arrow()
    assert copy.fn(table)["input_ids"] == stage.fn(table)["input_ids"]


class Fails(Letters):
    """Fails for one text."""

    def __call__(self, texts: list[str], **options: Any) -> dict[str, Any]:
        if "a dog" in texts:
            raise ValueError("no dogs")
        return super().__call__(texts, **options)


def test_failing_rows_are_put_aside_one_by_one(tmp_path: Path) -> None:
    made = dataset().tokenize("text", Fails())
    with pytest.raises(TransformError, match=r"tokenize\('text'\).*row \d of its batch.*no dogs"):
        made.to_arrow()
    with pytest.warns(RuntimeWarning, match="failed for 1 row"):
        made.write_parquet(tmp_path / "out", failed_rows=tmp_path / "failed")
    assert windrow.read_parquet(tmp_path / "out").to_arrow()["row"].to_pylist() == [0, 1, 3, 4, 5, 6]
    assert windrow.read_parquet(tmp_path / "failed").to_arrow()["text"].to_pylist() == ["a dog"]


def test_columns_of_another_type_are_named() -> None:
    with pytest.raises(PlanError, match="tokenize: column 'row' is of type int64: give a column of text"):
        dataset().tokenize("row", TOKENIZER)
    with pytest.raises(PlanError, match="tokenize has no column 'words'"):
        dataset().tokenize("words", TOKENIZER)
    later = dataset().map_batches(lambda batch: {"text": batch["row"]}).tokenize("text", TOKENIZER)
    with pytest.raises(TransformError, match="column 'text' is of type int64: give a column of text"):
        later.to_arrow()
    files = windrow.from_items([{"bytes": b"a dog"}])
    message = (
        "column 'bytes' is of type .*binary: give a column of text, such as map\\(.*'bytes'.*decode\\(\\)"
    )
    with pytest.raises(PlanError, match=message):
        files.tokenize("bytes", TOKENIZER)
    made = files.map(lambda row: {"text": row["bytes"].decode()}).tokenize("text", TOKENIZER)
    assert len(made.take(1)[0]["input_ids"]) == 4  # with a token before and one behind
    gone = dataset().map_batches(lambda batch: {"row": batch["row"]}).tokenize("text", TOKENIZER)
    with pytest.raises(TransformError, match="there is no column 'text'"):
        gone.to_arrow()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"max_length": 0}, "max_length"),
        ({"padding": "longest", "max_length": 4}, "ragged='pad'"),
        ({"padding": "max_length"}, "needs max_length="),
        ({"padding": "max_length", "max_length": 4}, "no padding token: give pad_id="),
        ({"padding": "max_length", "max_length": 4, "pad_id": "x"}, "pad_id='x' must be an integer"),
        ({"pad_id": 3}, "pad_id= is for"),
        ({"add_special_tokens": 1}, "True or False"),
        ({"keep_text": None}, "True or False"),
        ({"keep_text": True, "output_column": "text"}, "needs another name"),
        ({"attention_mask": "input_ids"}, "given twice"),
        ({"tokenizer": 3}, "must be a tokenizer"),
        ({"tokenizer": len}, "must be a tokenizer"),
    ],
)
def test_invalid_arguments_are_named(options: dict[str, Any], match: str) -> None:
    with pytest.raises(PlanError, match=match):
        dataset().tokenize("text", **{"tokenizer": TOKENIZER, **options})
