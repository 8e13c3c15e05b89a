"""What becomes of a DataFrame's columns: precision of floats, and MLlib vectors as arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from windrow.core.errors import PlanError

__all__ = ["Conversion", "FloatType", "VectorForm"]

FloatType = Literal["float32", "float64"]
VectorForm = Literal["array", "struct"]


@dataclass(frozen=True)
class Conversion:
    """How columns are converted.

    Attributes
    ----------
    dtype
        What floats become, in arrays, structs and maps too; None: they stay.
    vectors
        ``"array"``: MLlib vectors become arrays; ``"struct"``: they stay as Spark stores them.

    Raises
    ------
    PlanError
        For any other value.
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
        """The columns that become arrays."""
        if self.vectors == "struct":
            return []
        return [field.name for field in schema.fields if _is_vector(field.dataType)]

    def apply(self, df: Any) -> Any:
        """Convert a DataFrame; nothing is computed yet.

        Raises
        ------
        PlanError
            If columns share a name, or a vector lies within another type.
        """
        names = [field.name for field in df.schema.fields]
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            raise PlanError(f"df has more than one column {doubled[0]!r}: rename them with df.toDF(...)")
        return df.select([self._convert(field) for field in df.schema.fields])

    def _convert(self, field: Any) -> Any:
        from pyspark.ml.functions import vector_to_array
        from pyspark.sql import functions

        column = functions.col("`" + field.name.replace("`", "``") + "`")
        if self.vectors == "array" and _is_vector(field.dataType):
            # Spark's function refuses null
            array = functions.when(column.isNotNull(), vector_to_array(column, self.dtype or "float64"))
            return array.alias(field.name)
        if self.vectors == "array" and _holds_vector(field.dataType):
            raise PlanError(
                f"column {field.name!r} holds MLlib vectors within {field.dataType.simpleString()}: "
                "select them as columns of their own, or give vectors='struct'"
            )
        wanted = self._type(field.dataType)
        return column if wanted == field.dataType else column.cast(wanted).alias(field.name)

    def _type(self, kind: Any) -> Any:
        """A type with floats of the precision that was asked for; keys of maps stay."""
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
