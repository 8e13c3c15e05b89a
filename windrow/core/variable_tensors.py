"""Columns of tensors of several shapes: Arrow's canonical extension type ``arrow.variable_shape_tensor``.

pyarrow has no class for this type, so it is defined here, with the storage and metadata of Arrow's specification, and
registered: reading an IPC or Parquet file then gives the type again. A row is a list of values in row-major order,
and the shape of its tensor.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.errors import SourceError

_NAME = "arrow.variable_shape_tensor"
_DATA, _SHAPE = "data", "shape"
_MAX_VALUES = 2**31 - 1


class VariableShapeTensorType(pa.ExtensionType):  # type: ignore[misc]
    """Arrow's canonical type ``arrow.variable_shape_tensor``: tensors of one value type, each of its own shape.

    ``read_images`` without ``size=`` gives columns of this type, and so do functions that return arrays of several
    shapes. NumPy batches hold an object array of one array per row, torch batches a list of one tensor per row.

    Parameters
    ----------
    value_type
        The type of the values, such as ``pa.uint8()``.
    ndim
        The number of dimensions.
    dim_names, permutation
        The names of the dimensions, and, for each dimension that users see, the index of the stored one; None: no
        names, the order in which they are stored.
    uniform_shape
        The sizes that all tensors share, and None for the other dimensions. It is kept and not checked.

    Examples
    --------
    >>> import numpy as np, windrow
    >>> images = [np.zeros((2, 3), np.uint8), np.ones((4, 1), np.uint8)]
    >>> ds = windrow.range(2).map_batches(lambda batch: {"image": [images[row] for row in batch["id"]]})
    >>> [image.shape for image in ds.take_batch()["image"]]
    [(2, 3), (4, 1)]
    >>> windrow.VariableShapeTensorType(pa.uint8(), 2)
    VariableShapeTensorType(value_type=uint8, ndim=2)
    """

    def __init__(
        self,
        value_type: pa.DataType,
        ndim: int,
        *,
        dim_names: Sequence[str] | None = None,
        permutation: Sequence[int] | None = None,
        uniform_shape: Sequence[int | None] | None = None,
    ) -> None:
        storage = pa.struct([(_DATA, pa.list_(value_type)), (_SHAPE, pa.list_(pa.int32(), ndim))])
        self._init_of(storage, dim_names, permutation, uniform_shape)

    def _init_of(
        self,
        storage: pa.DataType,
        dim_names: Sequence[str] | None,
        permutation: Sequence[int] | None,
        uniform_shape: Sequence[int | None] | None,
    ) -> None:
        self.dim_names = None if dim_names is None else list(dim_names)
        self.permutation = None if permutation is None else list(permutation)
        self.uniform_shape = None if uniform_shape is None else list(uniform_shape)
        super().__init__(storage, _NAME)

    @property
    def value_type(self) -> pa.DataType:
        """The type of the values."""
        return tensor_value_type(self)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return tensor_ndim(self)

    def make_column(self, arrays: Iterable[NDArray[Any] | None]) -> pa.Array:
        """Make a column of this type, for functions that return arrays whose shapes can be equal in one batch.

        Parameters
        ----------
        arrays
            One array of ``ndim`` dimensions a row, or None for null.

        Raises
        ------
        pyarrow.ArrowInvalid
            If an array has other dimensions or values that the type cannot hold, or there are 2**31 values or more.

        Examples
        --------
        >>> import numpy as np, windrow
        >>> kind = windrow.VariableShapeTensorType(pa.uint8(), 2)
        >>> kind.make_column([np.zeros((2, 3), np.uint8), None]).null_count
        1
        """
        return to_tensor_column(arrays, self)

    def __arrow_ext_serialize__(self) -> bytes:
        found = {
            "dim_names": self.dim_names,
            "permutation": self.permutation,
            "uniform_shape": self.uniform_shape,
        }
        stated = {name: value for name, value in found.items() if value is not None}
        return json.dumps(stated).encode()

    @classmethod
    def __arrow_ext_deserialize__(
        cls, storage_type: pa.DataType, serialized: bytes
    ) -> VariableShapeTensorType:
        _check_storage(storage_type)
        stated = json.loads(serialized) if serialized else {}
        made = cls.__new__(cls)
        made._init_of(
            storage_type, *(stated.get(name) for name in ("dim_names", "permutation", "uniform_shape"))
        )
        return made

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, VariableShapeTensorType)
            and self.storage_type == other.storage_type
            and self.__arrow_ext_serialize__() == other.__arrow_ext_serialize__()
        )

    def __ne__(self, other: object) -> bool:
        # the base class defines it without the parameters
        return not self == other

    def __hash__(self) -> int:
        return hash((self.storage_type, self.__arrow_ext_serialize__()))

    def __repr__(self) -> str:
        return f"VariableShapeTensorType(value_type={self.value_type}, ndim={self.ndim})"

    def __str__(self) -> str:
        return f"extension<{_NAME}[value_type={self.value_type}, ndim={self.ndim}]>"


def _check_storage(kind: Any) -> None:
    """Raise ``ArrowInvalid`` unless a storage type is that of the specification."""
    names = [field.name for field in kind] if pa.types.is_struct(kind) else []
    if names == [_DATA, _SHAPE]:
        data, shape = kind.field(0).type, kind.field(1).type
        is_list = pa.types.is_list(data) or pa.types.is_large_list(data)
        if is_list and pa.types.is_fixed_size_list(shape) and shape.value_type == pa.int32():
            return
    raise pa.ArrowInvalid(
        f"{_NAME} is stored as struct<data: list<T>, shape: fixed_size_list<int32>[ndim]>, not as {kind}"
    )


def _register() -> None:
    """Register the class, in place of that of Arrow's C++ in versions that have one.

    pyarrow shows that one without its parameters, and cannot pickle it.
    """
    kind = VariableShapeTensorType(pa.uint8(), 1)
    try:
        pa.register_extension_type(kind)
    except pa.ArrowKeyError:
        if type(_registered_type(kind)) is pa.BaseExtensionType:
            pa.unregister_extension_type(_NAME)
            pa.register_extension_type(kind)
        # else another library has defined it: what follows finds the type by its name


def _registered_type(kind: VariableShapeTensorType) -> pa.DataType:
    """The type that pyarrow reads where ``kind`` is stored."""
    metadata = {"ARROW:extension:name": _NAME, "ARROW:extension:metadata": kind.__arrow_ext_serialize__()}
    stored = pa.schema([pa.field("", kind.storage_type, metadata=metadata)]).serialize()
    return pa.ipc.read_schema(stored).field(0).type


_register()


def is_variable_tensor(kind: pa.DataType) -> bool:
    """Whether a type is ``arrow.variable_shape_tensor``, of whatever class.

    Examples
    --------
    >>> is_variable_tensor(VariableShapeTensorType(pa.uint8(), 3)), is_variable_tensor(pa.uint8())
    (True, False)
    """
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name == _NAME


def variable_tensor(value_type: pa.DataType, ndim: int) -> pa.DataType:
    """The type of tensors of several shapes."""
    return VariableShapeTensorType(value_type, ndim)


def tensor_value_type(kind: Any) -> pa.DataType:
    """The type of the values of a type of such tensors."""
    return kind.storage_type.field(0).type.value_type


def tensor_ndim(kind: Any) -> int:
    """The number of dimensions of a type of such tensors."""
    return int(kind.storage_type.field(1).type.list_size)


def _dimension_order(kind: Any) -> list[int]:
    """For each dimension that users see, the index of the stored dimension."""
    if not hasattr(kind, "permutation"):
        # Arrow's own type, of a table that was made before this class was registered
        kind = pa.ipc.read_schema(pa.schema([pa.field("", kind)]).serialize()).field(0).type
    return list(getattr(kind, "permutation", None) or range(tensor_ndim(kind)))


def to_tensor_column(arrays: Iterable[NDArray[Any] | None], kind: Any) -> pa.Array:
    """Make a column of arrays of ``kind``'s value type and number of dimensions; None becomes null.

    Raises ``ArrowInvalid`` for an array of other dimensions or values, or if there are 2**31 values or more, which
    the offsets of the specification cannot count.

    Examples
    --------
    >>> images = [np.zeros((2, 3), np.uint8), None, np.ones((1, 1), np.uint8)]
    >>> column = to_tensor_column(images, variable_tensor(pa.uint8(), 2))
    >>> column.storage.field("shape").to_pylist()
    [[2, 3], [0, 0], [1, 1]]
    """
    stored = [_stored(array, kind) for array in arrays]
    ndim, value_type = tensor_ndim(kind), tensor_value_type(kind)
    lengths = [0 if array is None else array.size for array in stored]
    ends = np.cumsum([0, *lengths], dtype=np.int64)
    if ends[-1] > _MAX_VALUES:
        raise pa.ArrowInvalid(
            f"tensors of {ends[-1]:,} values together: array cannot contain more than {_MAX_VALUES:,} values"
        )
    present = [array.reshape(-1) for array in stored if array is not None]
    values = _values(present, value_type)
    lists = kind.storage_type.field(0).type
    offsets = pa.py_buffer(ends.astype(np.int64 if pa.types.is_large_list(lists) else np.int32))
    data = pa.Array.from_buffers(lists, len(stored), [None, offsets], children=[values])
    shapes = np.array([(0,) * ndim if array is None else array.shape for array in stored], np.int32)
    sizes = pa.Array.from_buffers(pa.int32(), shapes.size, [None, pa.py_buffer(shapes.reshape(-1))])
    shape = pa.Array.from_buffers(kind.storage_type.field(1).type, len(stored), [None], children=[sizes])
    missing = np.array([array is None for array in stored], np.bool_)
    mask = pa.py_buffer(np.packbits(~missing, bitorder="little")) if missing.any() else None
    storage = pa.Array.from_buffers(
        kind.storage_type, len(stored), [mask], int(missing.sum()), children=[data, shape]
    )
    return pa.ExtensionArray.from_storage(kind, storage)


def tensor_rows(column: Any, convert: Callable[[pa.Array], NDArray[Any]]) -> Iterator[NDArray[Any] | None]:
    """The tensors of a column, None for null: views of what ``convert`` makes of the column's values.

    Raises `SourceError` if a shape does not match the number of its values.

    Examples
    --------
    >>> column = to_tensor_column([np.zeros((2, 3), np.uint8), None], variable_tensor(pa.uint8(), 2))
    >>> [None if row is None else row.shape for row in tensor_rows(column, np.asarray)]
    [(2, 3), None]
    """
    storage, rows, ndim = column.storage, len(column), tensor_ndim(column.type)
    lists, sizes = storage.field(0), storage.field(1)
    offsets = np.asarray(lists.offsets).astype(np.int64) if rows else np.zeros(1, np.int64)
    flat = sizes.values.slice(sizes.offset * ndim, rows * ndim)
    # the buffer, since shapes of null tensors can be null
    shapes = np.frombuffer(flat.buffers()[1], np.int32, rows * ndim, 4 * flat.offset) if rows else flat
    shapes = np.asarray(shapes).reshape(rows, ndim)
    valid = np.ones(rows, np.bool_) if not storage.null_count else np.asarray(storage.is_valid())
    wrong = (shapes.astype(np.int64).prod(axis=1) != np.diff(offsets)) & valid
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise SourceError(
            f"a tensor of shape {shapes[row].tolist()} is stored with {np.diff(offsets)[row]:,} values, so its column "
            "is corrupt: write the file again"
        )
    first, order = int(offsets[0]), _dimension_order(column.type)
    values = convert(lists.values.slice(first, int(offsets[-1]) - first))
    starts = (offsets - first).tolist()
    for row, (shape, is_valid) in enumerate(zip(shapes.tolist(), valid.tolist(), strict=True)):
        yield values[starts[row] : starts[row + 1]].reshape(shape).transpose(order) if is_valid else None


def _stored(array: NDArray[Any] | None, kind: Any) -> NDArray[Any] | None:
    """An array with its dimensions in stored order."""
    if array is None:
        return None
    if array.ndim != tensor_ndim(kind):
        raise pa.ArrowInvalid(
            f"a tensor has the shape {array.shape}, but the column has {tensor_ndim(kind)} dimensions"
        )
    return np.ascontiguousarray(array.transpose(np.argsort(_dimension_order(kind))))


def _values(present: list[NDArray[Any]], value_type: pa.DataType) -> pa.Array:
    flat = np.concatenate(present) if present else np.zeros(0, np.uint8)
    if pa.types.is_boolean(value_type) or pa.from_numpy_dtype(flat.dtype) != value_type:
        return pa.array(flat).cast(value_type)
    # pa.array() would import pandas if installed
    return pa.Array.from_buffers(value_type, len(flat), [None, pa.py_buffer(flat)], null_count=0)
