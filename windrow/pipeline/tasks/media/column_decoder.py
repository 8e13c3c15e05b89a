"""The base of functions that decode one column row by row, so that a row that fails is known by itself."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.chosen_rows import filter_rows
from windrow.core.errors import PlanError
from windrow.io.formats.image_pixels import ImageError
from windrow.io.storage.path_contents import PathReader
from windrow.pipeline.tasks.media.column_contents import Content, read_contents
from windrow.pipeline.tasks.media.made_columns import MadeColumn
from windrow.pipeline.tasks.row_functions import RowError, RowFunction, check_present
from windrow.pipeline.tasks.row_generator import RowGenerator

# what to do about bytes that cannot be decoded
FIX = (
    "restore it, or go on without it: on_error='null', or 'drop' before the shuffle; write_parquet(failed_rows=...) "
    "and the like put such rows aside"
)

Draws = NDArray[Any] | None
OnError = Literal["raise", "null", "drop"]

_ON_ERROR = ("raise", "null", "drop")
# of images: what is not the fault of the bytes
_NOT_OF_BYTES = ("wrong mode", "no decoder")
# the columns of which this process has warned
_warned: set[tuple[str, str]] = set()

logger = logging.getLogger(__name__)


class MediaError(Exception):
    """The content of a row cannot be decoded; the text continues the sentence after its name.

    ``of_bytes``: the bytes are at fault, and not what is installed here.
    """

    def __init__(self, text: str, *, of_bytes: bool = True) -> None:
        super().__init__(text)
        self.of_bytes = of_bytes


@dataclass(frozen=True)
class ColumnDecoder(RowFunction):
    """A function on tables that decodes each row of a column; null stays null."""

    column: str
    # the column of the result; the same name takes the place of the column
    output: str
    paths: PathReader
    # what becomes of a row whose bytes cannot be decoded
    on_error: OnError

    @property
    @abstractmethod
    def draws(self) -> int:
        """How many random numbers decoding a row takes."""

    @abstractmethod
    def empty_column(self, rows: int) -> MadeColumn:
        """A column of so many rows to fill."""

    @property
    @abstractmethod
    def fails_at_random(self) -> bool:
        """Whether random numbers can decide which rows cannot be decoded."""

    @property
    def draws_decide_rows(self) -> bool:
        return self.fails_at_random

    @property
    def row_choice(self) -> str:
        """Which rows it chooses where it drops others, for states."""
        return f"{type(self).__name__} {self.column}"

    @abstractmethod
    def decode(self, data: Any, draws: Draws) -> NDArray[Any]:
        """Decode the bytes of a row; raises a MediaError or ImageError."""

    def __call__(self, table: pa.Table, *args: Any, rng: RowGenerator | None = None, **kwargs: Any) -> Any:
        """The table with the decoded column; raises a `RowError` at the first row that fails."""
        made = self.empty_column(table.num_rows)
        kept = np.ones(table.num_rows, np.bool_)
        at = 0
        for row, (content, draws) in enumerate(self._rows(table, rng)):
            try:
                made.put(at, self._decode(content, draws))
            except BaseException as error:
                if not self._tolerates(error):
                    raise RowError(row, error) from error
                self._warn(error)
                if self.on_error == "drop":
                    kept[row] = False
                    continue
                made.put(at, None)
            at += 1
        rows = table if kept.all() else filter_rows(table, pa.array(kept))
        columns = dict(zip(rows.column_names, rows.columns, strict=True))
        columns[self.output] = made.finish()
        return columns

    def failing(
        self, table: pa.Table, *args: Any, rng: RowGenerator | None = None, **kwargs: Any
    ) -> list[RowError]:
        """An error for each row that fails; none if the column itself is what is wrong."""
        found: list[RowError] = []
        rows = self._rows(table, rng)
        try:
            for row, (content, draws) in enumerate(rows):
                try:
                    self._decode(content, draws)
                except Exception as error:
                    if not self._tolerates(error):
                        found.append(RowError(row, error))
        except Exception:
            return []
        return found

    def _rows(self, table: pa.Table, rng: RowGenerator | None) -> Iterator[tuple[Content, Draws]]:
        check_present([self.column], table)
        drawn = repeat(None) if rng is None else iter(rng.random(self.draws))
        try:
            yield from zip(read_contents(table.column(self.column), self.paths), drawn, strict=False)
        except TypeError as error:
            raise TypeError(f"column {self.column!r} {error}") from error

    def _tolerates(self, error: BaseException) -> bool:
        """Whether a row is null or left out for an error: its bytes are at fault, and no library is missing."""
        if self.on_error == "raise":
            return False
        cause = error.__cause__
        if isinstance(cause, ImageError):
            return cause.cause not in _NOT_OF_BYTES
        return isinstance(cause, MediaError) and cause.of_bytes

    def _warn(self, error: BaseException) -> None:
        """Log the first row of a process that is null or left out."""
        key = (self.column, self.output)
        if key not in _warned:
            _warned.add(key)
            end = "gets null" if self.on_error == "null" else "is left out"
            logger.warning(
                "a row %s, as on_error=%r says: %s. Others are not logged", end, self.on_error, error
            )

    def _decode(self, content: Content, draws: Draws) -> NDArray[Any] | None:
        if content.load is None:
            return None
        try:
            return self.decode(content.load(), draws)
        except (ImageError, MediaError) as error:
            what = "the value" if content.path is None else content.path
            raise ValueError(f"{what} of column {self.column!r} {error}") from error


def check_on_error(on_error: object, caller: str) -> None:
    """Raise a PlanError unless ``on_error`` is one of its values."""
    if on_error not in _ON_ERROR:
        raise PlanError(f"{caller}: on_error={on_error!r} must be one of {', '.join(map(repr, _ON_ERROR))}")
