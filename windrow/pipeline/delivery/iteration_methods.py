"""The ``iter_*`` methods and ``to_torch``, shared by datasets, pipelines, shards and epochs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from windrow.core.missing_names import NamesMissing
from windrow.pipeline.delivery.batch_formats import (
    BatchFormat,
    BatchRows,
    check_format,
    convert,
    cut_batches,
    rows,
    to_numpy_batches,
)
from windrow.pipeline.delivery.delivery import (
    BatchIterator,
    Delivery,
    check_number,
    choose_batches,
)
from windrow.pipeline.delivery.sequence_slice import Selection, SequenceSlice
from windrow.shuffle.order.balance import Balance
from windrow.shuffle.order.token_budget import TokenBudget

if TYPE_CHECKING:
    from windrow.pipeline.delivery.tensors.device import Device, DType
    from windrow.pipeline.delivery.tensors.ragged import RaggedFormat


class Deliverable(NamesMissing, ABC):
    """Base of everything that can be iterated in rows and batches.

    It is not itself an iterable or a sequence, since that would need a guessed batch size. Code that uses it
    as one, such as torch's DataLoader, gets a TypeError that names the methods to call instead.
    """

    if not TYPE_CHECKING:  # hidden from type checkers, so that they report such uses too

        def __iter__(self):
            raise TypeError(
                f"'{type(self).__name__}' object is not iterable: iterate over what {self._call_hint()} returns"
            )

        def __len__(self):
            raise TypeError(
                f"object of type '{type(self).__name__}' has no len(): {self._length_hint()}. {self._loader_hint()}"
            )

        def __getitem__(self, key):
            raise TypeError(
                f"'{type(self).__name__}' object is not subscriptable: {self._item_hint(key)}. {self._loader_hint()}"
            )

        def __bool__(self):
            return True  # otherwise bool() would call len()

    def _call_hint(self) -> str:
        epochs = "iter_epochs(), " if hasattr(self, "iter_epochs") else ""
        return f"{epochs}iter_batches(batch_size=...) or iter_torch_batches(batch_size=...)"

    def _item_hint(self, key: object) -> str:
        """What to call instead of ``[key]``."""
        names = [key] if isinstance(key, str) else key if isinstance(key, list) else []
        if hasattr(self, "select_columns") and names and all(isinstance(name, str) for name in names):
            return f"select_columns({names!r}) keeps columns"
        if hasattr(self, "limit") and isinstance(key, (int, slice)):
            return "rows have no index: take(n) returns the first n rows, and limit(n) a dataset of them"
        return f"iterate over what {self._call_hint()} returns"

    def _length_hint(self) -> str:
        if hasattr(self, "count"):
            return "count() returns the number of rows of an epoch"
        whole = "steps_per_epoch(batch_size) or " if hasattr(self, "steps_per_epoch") else ""
        return f"{whole}len(iter_batches(batch_size=...)) returns the number of batches of an epoch"

    def _loader_hint(self) -> str:
        hint = "iter_torch_batches(batch_size=...) replaces torch's DataLoader"
        if hasattr(self, "as_torch_dataset"):
            hint += (
                "; as_loader(batch_size=...) and as_torch_dataset(batch_size=...) return what frameworks take"
            )
        return hint

    @abstractmethod
    def _deliver(self, delivery: Delivery) -> BatchIterator:
        """Start delivery and return its iterator."""

    def iter_rows(self) -> BatchIterator:
        """Iterate over rows as dicts of Python values.

        Rows are assigned to shards one by one (a batch size of 1).
        """
        return self._deliver(Delivery(1, False, 1, lambda span, _: rows(span)))

    def iter_batches(
        self,
        batch_size: int = 256,
        *,
        batch_format: BatchFormat = "numpy",
        columns: Sequence[str] | None = None,
        sequence: SequenceSlice | None = None,
        drop_last: bool = False,
        balance: Balance | None = None,
        token_budget: int | TokenBudget | None = None,
        group_by_length: int | None = None,
        prefetch_batches: int = 1,
    ) -> BatchIterator:
        """Iterate over batches.

        Parameters
        ----------
        batch_size
            Rows per batch; only the last batch can have fewer.
        batch_format
            ``"numpy"``: a dict of writable arrays; ``"pandas"``: a DataFrame;
            ``"pyarrow"``: a Table.
        columns
            The columns that this reader gets, in this order; other shards, and replicas of this one, can select
            others. None: all. ``()``: batches without columns, for a rank that counts steps only.
        sequence
            The part of each sequence that this reader gets, as a `windrow.SequenceSlice`; None: all of it.
        drop_last
            Omit the last step if its batches are not full.
        balance
            Divide the rows of each step among shards so that they cost about the same, see `windrow.Balance`; then
            the iterator's ``part`` tells the rows and costs of the latest batch. None: by number alone.
        token_budget
            In place of ``batch_size``, the most tokens of a batch, by the column of ``balance``: each step takes as
            many rows as fit on all shards, see `windrow.TokenBudget`.
        group_by_length
            Sort the rows of so many consecutive steps by length, by the column of ``balance``, so that those of a step
            have like lengths and little is padded. These steps come in random order, as do the rows of each, if rows
            are shuffled. None: the rows of a step are as the shuffle has them. It holds from the start of an epoch on;
            an epoch that goes on from a state keeps the order in which it began.
        prefetch_batches
            Number of batches to prepare ahead.

        Raises
        ------
        PlanError
            If an argument is invalid, or other shards read this epoch with another batch size.
        """
        check_format(batch_format)
        batch_size, balance = choose_batches(batch_size, balance, token_budget, group_by_length)

        def split(span: pa.RecordBatch, batch_rows: BatchRows) -> Iterator[Any]:
            if batch_format == "numpy":
                yield from to_numpy_batches(span, batch_rows)
                return
            for batch in cut_batches(span, batch_rows):
                yield convert(batch, batch_format, writable=True)

        return self._deliver(
            Delivery(
                batch_size,
                drop_last,
                prefetch_batches,
                split,
                background=batch_format == "pandas",
                converter_key=None if batch_format == "pandas" else (batch_format, batch_size),
                selection=Selection(columns, sequence),
                balance=balance,
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
        columns: Sequence[str] | None = None,
        sequence: SequenceSlice | None = None,
        drop_last: bool = False,
        balance: Balance | None = None,
        token_budget: int | TokenBudget | None = None,
        group_by_length: int | None = None,
        prefetch_batches: int = 1,
        pin_memory: bool | None = None,
        ragged: RaggedFormat | Mapping[str, RaggedFormat] | None = None,
    ) -> BatchIterator:
        """Iterate over batches as dicts of torch tensors.

        Tensors are writable and keep their memory alive. Numeric and boolean columns become tensors of shape
        (rows,), fixed-size lists and fixed-shape tensors of shape (rows, ...). So do lists whose rows all have
        one length; ``ragged`` says what becomes of others.

        Parameters
        ----------
        batch_size, columns, sequence, drop_last, balance, token_budget, group_by_length, prefetch_batches
            As for `iter_batches`.
        dtypes
            One dtype for all columns, or a dict by column; casts happen where fewer bytes cross to the device.
        device
            Target device of the tensors, such as ``"cuda"``; None: main memory. To a CUDA device, a batch is copied
            ahead, in one copy on a stream of its own. Several batches that are ready there take at most 256 MiB.
        collate_fn
            Makes each batch from rows in ``batch_format``; tensors that it returns are moved to ``device``.
            Excludes ``dtypes``. With small batches, work that can be done on many rows at once is cheaper in
            ``map_batches`` after the shuffle.
        batch_format
            What ``collate_fn`` receives, as for `iter_batches`.
        pin_memory
            Whether copies to the device go through pinned memory; None: for CUDA devices only.
        ragged
            For columns of lists of several lengths, one of these or a dict of them by column. ``"pad"`` or
            `windrow.Pad`: a tensor of shape (rows, length), padded to the batch's longest list or to a length;
            ``"nested"``: a nested tensor of torch in the jagged layout; ``"offsets"``: a `windrow.Ragged` of
            values and offsets. None: all lists of a column have one length.

        Raises
        ------
        PlanError
            If an argument is invalid, or, before the first batch, for columns that cannot become tensors
            (strings, nulls); the message names them and how to fix it. Also for a batch whose lists do not
            have one length where ``ragged`` does not name the column.
        TransformError
            If ``collate_fn`` raises.
        """
        from windrow.pipeline.delivery.tensors.column_tensors import TensorSpec, tensor_batches
        from windrow.pipeline.delivery.tensors.ragged import RaggedSpec

        batch_size, balance = choose_batches(batch_size, balance, token_budget, group_by_length)
        spec = TensorSpec(dtypes, device, collate_fn, batch_format, pin_memory, RaggedSpec(ragged))

        mover = spec.placement.mover()
        background = collate_fn is not None or device is not None
        return self._deliver(
            Delivery(
                batch_size,
                drop_last,
                prefetch_batches,
                lambda span, batch_rows: tensor_batches(span, batch_rows, spec, mover),
                spec.check,
                background=background,
                converter_key=None if background else (spec, batch_size),
                finish=mover.finish if background else None,
                size_of=mover.size_of,
                selection=Selection(columns, sequence),
                balance=balance,
            )
        )

    def iter_jax_batches(
        self,
        batch_size: int = 256,
        *,
        dtypes: Any = None,
        sharding: Any = None,
        columns: Sequence[str] | None = None,
        sequence: SequenceSlice | None = None,
        drop_last: bool = False,
        balance: Balance | None = None,
        token_budget: int | TokenBudget | None = None,
        group_by_length: int | None = None,
        prefetch_batches: int = 1,
    ) -> BatchIterator:
        """Iterate over batches as dicts of JAX arrays; needs the extra ``jax``.

        Arrays have the shapes of `iter_torch_batches`; lists must have one length.

        Parameters
        ----------
        batch_size, columns, sequence, drop_last, balance, token_budget, group_by_length, prefetch_batches
            As for `iter_batches`.
        dtypes
            One dtype, or a dict of them by column. None: as stored; 64 bits become 32 without ``jax_enable_x64``.
        sharding
            A ``jax.sharding.Sharding``, or a dict of them by column: each batch is a global array, with several
            processes of a whole step. None: the default device.

        Raises
        ------
        PlanError
            If columns cannot become arrays, integers do not fit into 32 bits, or a sharding does not fit a batch.

        Examples
        --------
        >>> import windrow
        >>> [batch["id"].tolist() for batch in windrow.range(3).iter_jax_batches(batch_size=2)]
        [[0, 1], [2]]
        """
        from windrow.pipeline.delivery.jax_arrays import JaxSpec, to_jax

        batch_size, balance = choose_batches(batch_size, balance, token_budget, group_by_length)
        spec = JaxSpec(dtypes, sharding)
        return self._deliver(
            Delivery(
                batch_size,
                drop_last,
                prefetch_batches,
                lambda span, batch_rows: (to_jax(batch, spec) for batch in cut_batches(span, batch_rows)),
                spec.check,
                background=True,
                selection=Selection(columns, sequence),
                balance=balance,
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
    ) -> BatchIterator:
        """Iterate over pairs of (features, label) tensors, as Ray's ``Dataset.to_torch`` does.

        Parameters
        ----------
        label_column
            The column of the label; None: the label of every pair is None.
        feature_columns
            None: all columns except the label, as one matrix of shape (rows, columns). A list of columns
            also gives one matrix; a list of lists, or a dict of lists, gives several.
        label_column_dtype, feature_column_dtypes
            Dtypes to convert to; ``feature_column_dtypes`` is one dtype, or nested like ``feature_columns``.
        batch_size, drop_last, prefetch_batches
            As for `iter_batches`.
        device, pin_memory
            As for `iter_torch_batches`.
        unsqueeze_label_tensor
            Give labels the shape (rows, 1) instead of (rows,).
        unsqueeze_feature_tensors
            Add an axis to every feature column before joining; False: a matrix of one column has the shape
            (rows,).

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

        mover = spec.placement.mover()
        return self._deliver(
            Delivery(
                batch_size,
                drop_last,
                prefetch_batches,
                lambda span, batch_rows: (
                    to_features(batch, spec, mover) for batch in cut_batches(span, batch_rows)
                ),
                spec.check,
                background=device is not None,
                finish=mover.finish,
                size_of=mover.size_of,
            )
        )
