"""Converts a Spark DataFrame's columns: precision of floats, and MLlib vectors to arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from windrow.core.errors import PlanError

__all__ = ["Conversion", "FloatType", "VectorForm", "select_column"]

FloatType = Literal["float32", "float64"]
VectorForm = Literal["array", "struct"]


@dataclass(frozen=True)
class Conversion:
    """How columns are converted.

    Floats are converted to ``dtype`` if there is one, also in arrays, structs and maps. MLlib vectors become
    arrays, or stay as Spark stores them (``"struct"``).
    """

    dtype: FloatType | None
    vectors: VectorForm

    def __post_init__(self) -> None:
        if self.dtype is not None and self.dtype not in get_args(FloatType):
            raise PlanError(
                f"dtype={self.dtype!r} must be 'float32', 'float64', or None to leave floats alone"
            )
        if self.vectors not in get_args(VectorForm):
            raise PlanError(f"vectors={self.vectors!r} must be 'array' or 'struct'")

    def vector_columns(self, schema: Any) -> list[str]:
        """Return the names of the vector columns that are converted to arrays."""
        if self.vectors == "struct":
            return []
        return [field.name for field in schema.fields if _is_vector(field.dataType)]

    def apply(self, df: Any) -> Any:
        """Return the converted DataFrame; it is lazy."""
        names = [field.name for field in df.schema.fields]
        duplicates = sorted({name for name in names if names.count(name) > 1})
        if duplicates:
            raise PlanError(f"df has more than one column {duplicates[0]!r}: rename them with df.toDF(...)")
        return df.select([self._convert(field) for field in df.schema.fields])

    def _convert(self, field: Any) -> Any:
        from pyspark.ml.functions import vector_to_array
        from pyspark.sql import functions

        column = select_column(field.name)
        if self.vectors == "array" and _is_vector(field.dataType):
            # vector_to_array fails on null
            array = functions.when(column.isNotNull(), vector_to_array(column, self.dtype or "float64"))
            return array.alias(field.name)
        if self.vectors == "array" and _holds_vector(field.dataType):
            raise PlanError(
                f"column {field.name!r} holds MLlib vectors within {field.dataType.simpleString()}: "
                "select them as columns of their own, or give vectors='struct'"
            )
        target = self._type(field.dataType)
        return column if target == field.dataType else column.cast(target).alias(field.name)

    def _type(self, kind: Any) -> Any:
        """Return a type with its floats changed to ``dtype``, except in keys of maps."""
        from pyspark.sql import types

        if self.dtype is None:
            return kind
        if isinstance(kind, (types.FloatType, types.DoubleType)):
            return types.FloatType() if self.dtype == "float32" else types.DoubleType()
        if isinstance(kind, types.ArrayType):
            return types.ArrayType(self._type(kind.elementType), kind.containsNull)
        if isinstance(kind, types.MapType):
            return types.MapType(kind.keyType, self._type(kind.valueType), kind.valueContainsNull)
        if isinstance(kind, types.StructType):
            return types.StructType(
                [
                    types.StructField(f.name, self._type(f.dataType), f.nullable, f.metadata)
                    for f in kind.fields
                ]
            )
        return kind


def select_column(name: str) -> Any:
    """The column of a name, which can contain any character."""
    from pyspark.sql import functions

    return functions.col("`" + name.replace("`", "``") + "`")


def _is_vector(kind: Any) -> bool:
    from pyspark.ml.linalg import VectorUDT
    from pyspark.mllib.linalg import VectorUDT as OldVectorUDT

    return isinstance(kind, (VectorUDT, OldVectorUDT))


def _holds_vector(kind: Any) -> bool:
    from pyspark.sql import types

    if isinstance(kind, types.ArrayType):
        return _is_vector(kind.elementType) or _holds_vector(kind.elementType)
    if isinstance(kind, types.MapType):
        return any(_is_vector(part) or _holds_vector(part) for part in (kind.keyType, kind.valueType))
    if isinstance(kind, types.StructType):
        return any(_is_vector(field.dataType) or _holds_vector(field.dataType) for field in kind.fields)
    return False
