"""How batches are handed out: the ``iter_*`` methods that every level of the chain shares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from windrow.core.errors import PlanError
from windrow.core.integers import as_integer
from windrow.pipeline.delivery.batch_formats import BatchFormat, check_format, convert, rows, to_numpy_batches

if TYPE_CHECKING:
    from windrow.pipeline.delivery.tensors.torch_types import Device, DType

__all__ = ["Batches", "Deliverable", "Delivery", "check_drop_last", "check_number"]

Check = Callable[[pa.Schema, Mapping[str, int | None]], None]


class Batches(Protocol):
    """What ``iter_*`` returns: an iterator that knows its length and where it began."""

    @property
    def start(self) -> int:
        """Steps of the epoch that were consumed before."""
        ...

    def __iter__(self) -> Iterator[Any]: ...

    def __next__(self) -> Any: ...

    def __len__(self) -> int: ...

    def close(self) -> None:
        """Leave the epoch."""
        ...


@dataclass(frozen=True)
class Delivery:
    """What one ``iter_*`` call asked for.

    Attributes
    ----------
    batch_rows, drop_last
        The deal.
    prefetch_batches
        Batches prepared ahead.
    convert
        Turns a span of whole batches into its batches.
    check
        Refuses, before anything is read, a schema that cannot be converted.
    background
        Convert in another thread: worth it where conversion is slow.
    early
        Convert where runs are placed, which is worth it where that is quick and takes no memory: what
        tells these batches from others, for runs of the next epoch are placed before that is asked for.
        None: convert when batches are asked for.
    """

    batch_rows: int
    drop_last: bool
    prefetch_batches: int
    convert: Callable[[pa.RecordBatch], Iterable[Any]]
    check: Check | None = None
    background: bool = False
    early: object = None

    def __post_init__(self) -> None:
        for field, name, value, least in (
            ("batch_rows", "batch_size", self.batch_rows, 1),
            ("prefetch_batches", "prefetch_batches", self.prefetch_batches, 0),
        ):
            object.__setattr__(self, field, check_number(name, value, least))
        check_drop_last(self.drop_last)


def check_drop_last(value: object) -> None:
    """Raise PlanError where the argument ``drop_last`` is not a bool."""
    if not isinstance(value, bool):
        raise PlanError(f"drop_last={value!r} must be True or False")


def check_number(name: str, value: object, least: int) -> int:
    """Return the integer that an argument stands for, at least ``least``; raises PlanError where it is not one."""
    number = as_integer(value)
    if number is None or not least <= number < 2**62:
        raise PlanError(f"{name}={value!r} must be an integer of {least} or more")
    return number


class Deliverable(ABC):
    """Something that can be iterated in rows and batches.

    It is neither an iterable nor a sequence itself, since it would have to guess a batch size. Whoever takes
    it for one, such as a DataLoader of torch, is told what to call.
    """

    if not TYPE_CHECKING:  # a type checker finds such calls as long as it does not see these methods

        def __iter__(self):
            raise TypeError(
                f"'{type(self).__name__}' object is not iterable: iterate over what {self._calls()} returns"
            )

        def __len__(self):
            raise TypeError(
                f"object of type '{type(self).__name__}' has no len(): {self._lengths()}. {self._loading()}"
            )

        def __getitem__(self, key):
            raise TypeError(
                f"'{type(self).__name__}' object is not subscriptable: iterate over what {self._calls()} returns. "
                f"{self._loading()}"
            )

        def __bool__(self):
            return True  # without it, len() would be asked

    def _calls(self) -> str:
        epochs = "iter_epochs(), " if hasattr(self, "iter_epochs") else ""
        return f"{epochs}iter_batches(batch_size=...) or iter_torch_batches(batch_size=...)"

    def _lengths(self) -> str:
        if hasattr(self, "count"):
            return "count() tells the rows of an epoch"
        whole = "steps_per_epoch(batch_size) or " if hasattr(self, "steps_per_epoch") else ""
        return f"{whole}len(iter_batches(batch_size=...)) tells the batches of an epoch"

    def _loading(self) -> str:
        return "iter_torch_batches(batch_size=...) takes the place of torch's DataLoader"

    @abstractmethod
    def _deliver(self, delivery: Delivery) -> Batches:
        """Begin to deliver."""

    def iter_rows(self) -> Batches:
        """Iterate over rows as dicts of Python values.

        Rows are dealt to shards one by one (a batch size of 1).
        """
        return self._deliver(Delivery(1, False, 1, rows))

    def iter_batches(
        self,
        batch_size: int = 256,
        *,
        batch_format: BatchFormat = "numpy",
        drop_last: bool = False,
        prefetch_batches: int = 1,
    ) -> Batches:
        """Iterate over batches.

        Parameters
        ----------
        batch_size
            Rows of a batch; every batch but the last has exactly as many.
        batch_format
            ``"numpy"``: a dict of writable arrays; ``"pandas"``: a DataFrame;
            ``"pyarrow"``: a Table.
        drop_last
            Leave out the last step when it is not a full one.
        prefetch_batches
            Batches prepared ahead.

        Raises
        ------
        PlanError
            For a bad argument, or another batch size than the open epoch's.
        """
        check_format(batch_format)
        batch_size = check_number("batch_size", batch_size, 1)

        def split(span: pa.RecordBatch) -> Iterator[Any]:
            if batch_format == "numpy":
                yield from to_numpy_batches(span, batch_size)
                return
            for start in range(0, span.num_rows, batch_size):
                yield convert(span.slice(start, batch_size), batch_format, writable=True)

        return self._deliver(
            Delivery(
                batch_size,
                drop_last,
                prefetch_batches,
                split,
                background=batch_format == "pandas",
                early=None if batch_format == "pandas" else (batch_format, batch_size),
            )
        )

    def iter_torch_batches(
        self,
        batch_size: int = 256,
        *,
        dtypes: DType | Mapping[str, DType] | None = None,
        device: Device | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        batch_format: BatchFormat = "numpy",
        drop_last: bool = False,
        prefetch_batches: int = 1,
        pin_memory: bool | None = None,
    ) -> Batches:
        """Iterate over batches as dicts of torch tensors.

        Tensors are writable and keep their memory alive. Numeric and boolean columns
        become (rows,) tensors, fixed-size lists and fixed-shape tensors (rows, ...).

        Parameters
        ----------
        batch_size, drop_last, prefetch_batches
            As for `iter_batches`.
        dtypes
            One type for all columns, or a dict for some.
        device
            Where the tensors go, such as ``"cuda"``; None: main memory.
        collate_fn
            Makes the batch of what ``batch_format`` says; tensors it returns go to the
            device. Excludes ``dtypes``. For small batches, what can be done to many rows at once
            is cheaper in ``map_batches`` after the shuffle.
        pin_memory
            Whether copies to the device go through pinned memory; None: for CUDA.

        Raises
        ------
        PlanError
            Before the first batch, for columns that no tensor holds (strings, ragged
            lists, nulls), naming them and the remedies; for a bad argument.
        TransformError
            If ``collate_fn`` raises.
        """
        from windrow.pipeline.delivery.tensors.column_tensors import TensorSpec, to_tensors

        batch_size = check_number("batch_size", batch_size, 1)
        spec = TensorSpec(dtypes, device, collate_fn, batch_format, pin_memory)

        def split(span: pa.RecordBatch) -> Iterator[Any]:
            if collate_fn is not None or not span.num_columns:
                for start in range(0, span.num_rows, batch_size):
                    yield to_tensors(span.slice(start, batch_size), spec)
                return
            # one conversion for many batches: what is left to do for each is a view
            tensors = to_tensors(span, spec)
            if span.num_rows <= batch_size:
                # splitting gives up the interpreter's lock for every column, and has to get it back
                yield tensors
                return
            for views in zip(*(tensor.split(batch_size) for tensor in tensors.values()), strict=True):
                yield dict(zip(tensors, views, strict=True))

        background = collate_fn is not None or device is not None
        return self._deliver(
            Delivery(
                batch_size,
                drop_last,
                prefetch_batches,
                split,
                spec.check,
                background=background,
                early=None if background else (spec, batch_size),
            )
        )

    def to_torch(
        self,
        *,
        label_column: str | None = None,
        feature_columns: Any = None,
        label_column_dtype: DType | None = None,
        feature_column_dtypes: Any = None,
        batch_size: int = 256,
        device: Device | None = None,
        pin_memory: bool | None = None,
        drop_last: bool = False,
        prefetch_batches: int = 1,
        unsqueeze_label_tensor: bool = True,
        unsqueeze_feature_tensors: bool = True,
    ) -> Batches:
        """Iterate over pairs of (features, label) tensors.

        Parameters
        ----------
        label_column
            The label; None: the label of every pair is None.
        feature_columns
            None: all columns but the label, as one (rows, columns) matrix. A list of
            columns likewise; a list of lists, or a dict of lists: several matrices.
        label_column_dtype, feature_column_dtypes
            Types to convert to; the latter in the shape of ``feature_columns``.
        batch_size, drop_last, prefetch_batches
            As for `iter_batches`.
        device, pin_memory
            As for `iter_torch_batches`.
        unsqueeze_label_tensor
            Give labels the shape (rows, 1) rather than (rows,).
        unsqueeze_feature_tensors
            Give every feature column an axis of its own; False: a matrix of one column
            becomes (rows,).

        Raises
        ------
        PlanError
            As for `iter_torch_batches`.
        """
        from windrow.pipeline.delivery.tensors.feature_tensors import FeatureSpec, to_features

        batch_size = check_number("batch_size", batch_size, 1)
        spec = FeatureSpec(
            label_column=label_column,
            feature_columns=feature_columns,
            label_column_dtype=label_column_dtype,
            feature_column_dtypes=feature_column_dtypes,
            device=device,
            pin_memory=pin_memory,
            unsqueeze_label_tensor=unsqueeze_label_tensor,
            unsqueeze_feature_tensors=unsqueeze_feature_tensors,
        )

        def split(span: pa.RecordBatch) -> Iterator[Any]:
            for start in range(0, span.num_rows, batch_size):
                yield to_features(span.slice(start, batch_size), spec)

        return self._deliver(
            Delivery(batch_size, drop_last, prefetch_batches, split, spec.check, device is not None)
        )
