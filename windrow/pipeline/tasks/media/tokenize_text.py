"""`TokenizeText`: a column of text becomes one of token ids, by a tokenizer of Hugging Face."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.errors import PlanError
from windrow.core.optional_dependencies import require
from windrow.pipeline.tasks.document_columns import is_text
from windrow.pipeline.tasks.media.made_columns import FixedColumn, make_lists
from windrow.pipeline.tasks.row_functions import RowError, RowFunction, check_present
from windrow.pipeline.tasks.row_generator import RowGenerator

_IDS = pa.list_(pa.int32())
_MASK = pa.list_(pa.int8())
# tokenizers that this process has parsed, which takes up to a second of a large vocabulary
_PARSED = 8


@dataclass(frozen=True)
class TokenizerText:
    """A tokenizer of the library ``tokenizers`` as its JSON: small to compare, and parsed once in each process."""

    json: str
    splits_special_tokens: bool
    truncation_side: str
    pad_id: int | None
    pads_left: bool

    def encode(
        self, texts: Sequence[str], max_length: int | None, adds_special_tokens: bool
    ) -> list[list[int]]:
        """The ids of each text; the library encodes them in parallel, without the GIL."""
        tokenizer = _parse(self.json, self.splits_special_tokens, self.truncation_side, max_length)
        encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=adds_special_tokens)
        return [encoding.ids for encoding in encoded]


@dataclass(frozen=True, eq=False)
class PythonTokenizer:
    """A tokenizer of ``transformers`` that is written in Python."""

    tokenizer: Any
    pad_id: int | None
    pads_left: bool

    def encode(
        self, texts: Sequence[str], max_length: int | None, adds_special_tokens: bool
    ) -> list[list[int]]:
        found = self.tokenizer(
            list(texts),
            add_special_tokens=adds_special_tokens,
            truncation=max_length is not None,
            max_length=max_length,
            padding=False,
            return_attention_mask=False,
        )
        return found["input_ids"]


@lru_cache(_PARSED)
def _parse(json: str, splits_special_tokens: bool, truncation_side: str, max_length: int | None) -> Any:
    tokenizer = _library("tokenize()").from_str(json)
    tokenizer.encode_special_tokens = splits_special_tokens
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if max_length is not None:
        tokenizer.enable_truncation(max_length, direction=truncation_side)
    return tokenizer


def load_tokenizer(given: Any) -> TokenizerText | PythonTokenizer:
    """Take a tokenizer object, or load that of a file, a directory or a name on the Hugging Face Hub."""
    if isinstance(given, (str, os.PathLike)):
        return _from_object(_read(os.fspath(given)))
    return _from_object(given)


def _read(name: str) -> Any:
    library = _library(f"tokenize(tokenizer={name!r})")
    try:
        if os.path.isdir(name):
            return library.from_file(os.path.join(name, "tokenizer.json"))
        return library.from_file(name) if os.path.exists(name) else library.from_pretrained(name)
    # the library raises Exception itself
    except Exception as error:
        raise PlanError(
            f"tokenizer={name!r} cannot be loaded ({type(error).__name__}: {error}): give a file tokenizer.json, the "
            "directory of one, a name on the Hugging Face Hub, or a tokenizer"
        ) from error


def _from_object(given: Any) -> TokenizerText | PythonTokenizer:
    backend = getattr(given, "backend_tokenizer", given)
    is_compiled = hasattr(backend, "encode_batch_fast") and hasattr(backend, "to_str")
    if not is_compiled and not (callable(given) and hasattr(given, "convert_tokens_to_ids")):
        raise PlanError(
            f"tokenizer={given!r} must be a tokenizer of transformers or of tokenizers, the file or directory of one, "
            "or a name on the Hugging Face Hub"
        )
    side = getattr(given, "padding_side", None)
    pad_id = getattr(given, "pad_token_id", None)
    if not is_compiled:
        return PythonTokenizer(given, pad_id, side == "left")
    own = backend.padding or {}
    return TokenizerText(
        backend.to_str(),
        bool(getattr(given, "split_special_tokens", backend.encode_special_tokens)),
        getattr(given, "truncation_side", None) or (backend.truncation or {}).get("direction", "right"),
        own.get("pad_id") if pad_id is None else pad_id,
        (side or own.get("direction")) == "left",
    )


def _library(why: str) -> Any:
    return require("tokenizers", "tokenizers", why).Tokenizer


@dataclass(frozen=True)
class TokenizeText(RowFunction):
    """``tokenize``: one call of the tokenizer for each batch; null stays null."""

    column: str
    tokenizer: TokenizerText | PythonTokenizer
    output: str
    mask: str | None
    keeps_text: bool
    adds_special_tokens: bool
    max_length: int | None
    # None: rows keep their lengths
    pad_id: int | None

    def __call__(self, table: pa.Table, *args: Any, rng: RowGenerator | None = None, **kwargs: Any) -> Any:
        """The table with the column of ids in place of the text, and the mask behind it."""
        texts = self._texts(table)
        try:
            ids = self._encode(texts)
        except Exception as error:
            # the library does not say which text it was
            failing = self.failing(table)
            raise (failing[0] if failing else error) from error
        made: dict[str, Any] = {self.output: self._fill(ids, _IDS, self.pad_id or 0)}
        if self.mask is not None:
            ones = [None if row is None else np.ones(len(row), np.int8) for row in ids]
            made[self.mask] = self._fill(ones, _MASK, 0)
        columns: dict[str, Any] = {}
        for name, values in zip(table.column_names, table.columns, strict=True):
            if name not in made and (name != self.column or self.keeps_text):
                columns[name] = values
            if name == self.column:
                columns |= made
        return columns

    def failing(
        self, table: pa.Table, *args: Any, rng: RowGenerator | None = None, **kwargs: Any
    ) -> list[RowError]:
        """An error for each row that fails; none if the column itself is what is wrong."""
        found: list[RowError] = []
        try:
            texts = self._texts(table)
        except (KeyError, TypeError):
            return []
        for row, text in enumerate(texts):
            try:
                self._encode([text])
            except Exception as error:
                found.append(RowError(row, error))
        return found

    def _texts(self, table: pa.Table) -> list[str | None]:
        check_present([self.column], table)
        column = table.column(self.column)
        wrong = describe_wrong_text(self.column, column.type)
        if wrong is not None:
            raise TypeError(f"column {self.column!r} {wrong}")
        return column.to_pylist()

    def _encode(self, texts: Sequence[str | None]) -> list[NDArray[Any] | None]:
        present = [text for text in texts if text is not None]
        encoded = iter(self.tokenizer.encode(present, self.max_length, self.adds_special_tokens))
        return [None if text is None else np.array(next(encoded), np.int32) for text in texts]

    def _fill(self, rows: Sequence[NDArray[Any] | None], kind: pa.DataType, pad: int) -> Any:
        if self.pad_id is None or self.max_length is None:
            return make_lists(rows, kind)
        dtype = np.dtype(kind.value_type.to_pandas_dtype())
        fixed = FixedColumn(len(rows), (self.max_length,), dtype)
        for row, values in enumerate(rows):
            if values is None:
                fixed.put(row, None)
                continue
            place = fixed.row(row)
            place[:] = pad
            place[self.max_length - len(values) if self.tokenizer.pads_left else 0 :][: len(values)] = values
        return fixed.finish()


def describe_wrong_text(name: str, kind: pa.DataType) -> str | None:
    """Why a column cannot be tokenized, for messages that name it; None for text, perhaps dictionary-encoded."""
    if is_text(kind.value_type if pa.types.is_dictionary(kind) else kind):
        return None
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    decode = f", such as map(lambda row: {{'text': row[{name!r}].decode()}}) makes before" if is_bytes else ""
    return f"is of type {kind}: give a column of text{decode}"
