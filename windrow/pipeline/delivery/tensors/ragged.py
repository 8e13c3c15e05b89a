"""Converts list columns to tensors: rows of one length to a matrix, others padded, nested, or as values and offsets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.errors import PlanError
from windrow.core.integers import as_integer
from windrow.pipeline.delivery.tensors.schema_check import check_names, is_ragged
from windrow.pipeline.delivery.to_numpy import column_to_numpy, list_offsets

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Pad:
    """How a list column is padded to a tensor of shape (rows, length, ...).

    Parameters
    ----------
    length
        Values per row; None: as many as the batch's longest row has.
    value
        What is put behind a row's values.
    side
        The side of the padding, ``"right"`` or ``"left"``.
    truncate
        Cut rows that are longer than ``length`` at their end; False: they are an error.
    mask
        Name of an additional tensor of bools, shape (rows, length), that is True where a value is and False
        where padding is; None: no such tensor.

    Examples
    --------
    >>> import windrow
    >>> rows = windrow.from_items([{"tokens": [1, 2, 3]}, {"tokens": [4]}])
    >>> (batch,) = rows.iter_torch_batches(ragged=windrow.Pad(mask="attention_mask"))
    >>> batch["tokens"].tolist(), batch["attention_mask"].tolist()
    ([[1, 2, 3], [4, 0, 0]], [[True, True, True], [True, False, False]])
    """

    length: int | None = None
    value: float = 0
    side: Literal["right", "left"] = "right"
    truncate: bool = False
    mask: str | None = None

    def __post_init__(self) -> None:
        length = self.length if self.length is None else as_integer(self.length)
        if self.length is not None and (length is None or length < 1):
            raise PlanError(f"Pad(length={self.length!r}) must be an integer of 1 or more, or None")
        if isinstance(self.value, complex) or not isinstance(self.value, (bool, int, float, np.number)):
            raise PlanError(f"Pad(value={self.value!r}) must be a number")
        if self.side not in ("right", "left"):
            raise PlanError(f"Pad(side={self.side!r}) must be 'right' or 'left'")
        if self.truncate not in (True, False) or (self.truncate and length is None):
            raise PlanError(f"Pad(truncate={self.truncate!r}) must be False, or True with a length")
        if self.mask is not None and not isinstance(self.mask, str):
            raise PlanError(f"Pad(mask={self.mask!r}) must be the name of a tensor, or None")


class Ragged(NamedTuple):
    """The lists of a batch, one behind the other: list i is ``values[offsets[i]:offsets[i + 1]]``.

    Examples
    --------
    >>> import windrow
    >>> rows = windrow.from_items([{"tokens": [1, 2, 3]}, {"tokens": [4]}])
    >>> (batch,) = rows.iter_torch_batches(ragged="offsets")
    >>> batch["tokens"].values.tolist(), batch["tokens"].offsets.tolist()
    ([1, 2, 3, 4], [0, 3, 4])
    """

    #: Tensor of shape (values, ...).
    values: torch.Tensor
    #: Tensor of int64, shape (rows + 1,).
    offsets: torch.Tensor


RaggedName = Literal["nested", "offsets", "pad"]
RaggedFormat = RaggedName | Pad


class RaggedSpec:
    """The argument ``ragged`` of ``iter_torch_batches``, and the length of each column of one length.

    The first batch decides that length, for all batches of an iterator.
    """

    def __init__(
        self, ragged: RaggedFormat | Mapping[str, RaggedFormat] | None, *, fix: str | None = None
    ) -> None:
        # how to fix lists of several lengths, where there is no such argument
        self._fix = fix
        self._formats = dict(ragged) if isinstance(ragged, Mapping) else ragged
        every = self._formats.values() if isinstance(self._formats, dict) else [self._formats]
        for item in every:
            if not (item is None or isinstance(item, Pad) or item in get_args(RaggedName)):
                names = ", ".join(map(repr, get_args(RaggedName)))
                raise PlanError(
                    f"ragged={ragged!r}: {item!r} must be {names} or windrow.Pad(...), or a dict of them by column"
                )
        self._lengths: dict[str, int] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RaggedSpec) and self._formats == other._formats

    def __hash__(self) -> int:
        return hash(isinstance(self._formats, dict))

    def format_of(self, name: str) -> RaggedFormat | None:
        """The format of a list column; None: its lists have one length."""
        if isinstance(self._formats, dict):
            return self._formats.get(name)
        return self._formats

    def depends_on_batch(self, schema: pa.Schema) -> bool:
        """Whether the shape of a tensor depends on the rows of its batch."""
        return any(is_ragged(field.type) and self.format_of(field.name) is not None for field in schema)

    def check(self, schema: pa.Schema) -> None:
        """Raise PlanError if columns do not exist, are not lists, or a mask has a column's name."""
        if isinstance(self._formats, dict):
            check_names(self._formats, schema, "ragged")
            others = [name for name in self._formats if not is_ragged(schema.field(name).type)]
            if others:
                name = others[0]
                raise PlanError(
                    f"ragged names {name!r} ({schema.field(name).type}), which is not a list of numbers"
                )
        taken = list(schema.names)
        for field in schema:
            kind = self.format_of(field.name)
            if isinstance(kind, Pad) and kind.mask is not None and is_ragged(field.type):
                if kind.mask in taken:
                    raise PlanError(
                        f"Pad(mask={kind.mask!r}) of column {field.name!r} names another tensor: choose another name"
                    )
                taken.append(kind.mask)

    def to_rows(self, name: str, values: NDArray[Any], offsets: NDArray[np.int64]) -> NDArray[Any]:
        """Reshape the values of lists to (rows, length, ...); raises PlanError if they do not have one length."""
        lengths = np.diff(offsets)
        expected = self._lengths.get(name, 0)
        if len(lengths):
            expected = self._lengths.setdefault(name, int(lengths[0]))
        if (lengths != expected).any():
            low, high = min(expected, int(lengths.min())), max(expected, int(lengths.max()))
            fix = (
                self._fix
                or f"give ragged={{{name!r}: ...}} with 'pad', 'nested', 'offsets' or windrow.Pad(length=...)"
            )
            raise PlanError(
                f"the lists of column {name!r} have between {low:,} and {high:,} values, so they are not the rows of "
                f"one tensor: {fix}"
            )
        return values.reshape(len(lengths), expected, *values.shape[1:])


def list_parts(array: pa.Array) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The values of lists without nulls, writable, and their offsets from 0."""
    offsets = list_offsets(array)
    first, last = int(offsets[0]), int(offsets[-1])
    return column_to_numpy(array.values.slice(first, last - first), writable=True), offsets - first


class _Unnested(NamedTuple):
    """What a nested tensor is made of, once it is where it is wanted."""

    values: torch.Tensor
    offsets: torch.Tensor


def nest(batch: dict[str, Any]) -> dict[str, Any]:
    """Make the nested tensors of a batch that `to_ragged` left to be made."""
    import torch

    return {
        name: torch.nested.nested_tensor_from_jagged(*value) if isinstance(value, _Unnested) else value
        for name, value in batch.items()
    }


def to_ragged(
    name: str, values: torch.Tensor, offsets: torch.Tensor, kind: RaggedFormat | None
) -> dict[str, Any]:
    """Convert lists: the column's tensor by its name, and its mask if there is one; `nest` completes them."""
    if kind == "offsets":
        return {name: Ragged(values, offsets)}
    if kind == "nested":
        return {name: _Unnested(values, offsets)}
    pad = kind if isinstance(kind, Pad) else Pad()
    padded, present = _pad(values, offsets, pad, name)
    return {name: padded} if pad.mask is None else {name: padded, pad.mask: present}


def _pad(
    values: torch.Tensor, offsets: torch.Tensor, pad: Pad, name: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """(padded values, mask) of shapes (rows, length, ...) and (rows, length)."""
    import torch

    if not _holds(values.dtype, pad.value):
        raise PlanError(f"Pad(value={pad.value!r}) of column {name!r} is not a value of {values.dtype}")
    starts, lengths = offsets[:-1], offsets.diff()
    longest = int(lengths.max()) if len(lengths) else 0
    length = longest if pad.length is None else int(pad.length)
    if longest > length and not pad.truncate:
        raise PlanError(
            f"column {name!r} has a list of {longest:,} values, more than Pad(length={length:,}): raise the length, "
            "give truncate=True, or filter such rows out"
        )
    lengths = lengths.clamp(max=length)
    index = torch.arange(length)[None, :]
    if pad.side == "left":
        index = index - (length - lengths)[:, None]
    present = (index >= 0) & (index < lengths[:, None])
    padded = torch.full((len(lengths), length, *values.shape[1:]), pad.value, dtype=values.dtype)
    kept = lengths.sum() == len(values)
    padded[present] = values if kept else values[(starts[:, None] + index)[present]]
    return padded, present


def _holds(dtype: torch.dtype, value: float) -> bool:
    import torch

    if dtype.is_floating_point:
        return True
    if dtype == torch.bool:
        return value in (0, 1)
    limits = torch.iinfo(dtype)
    return value == int(value) and limits.min <= value <= limits.max if np.isfinite(value) else False
