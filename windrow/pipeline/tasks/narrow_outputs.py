"""Map outputs without what no reader of a node takes of their rows."""

from __future__ import annotations

from collections.abc import Sequence

from windrow.pipeline.delivery.sequence_chunks import cut_column
from windrow.pipeline.delivery.wanted import Wanted
from windrow.shuffle.kernels.map_output import MapOutput


def narrow_outputs(outputs: Sequence[MapOutput], wanted: Wanted, *, copies: bool) -> list[MapOutput]:
    """Leave out the columns, and the parts of sequences, that are not wanted.

    ``copies``: what is left keeps no memory of the rest. Fields of cut columns say which parts they hold.

    Raises
    ------
    PlanError
        If sequences cannot be cut.
    """
    return [_narrow(output, wanted, copies) for output in outputs]


def _narrow(output: MapOutput, wanted: Wanted, copies: bool) -> MapOutput:
    schema = output.schema
    parts = wanted.of_columns(schema)
    if len(parts) == len(schema) and not any(parts.values()):
        return output
    replaced = {}
    for name, part in parts.items():
        if part is not None:
            number, others = schema.get_field_index(name), output.others
            column = others.column(others.schema.get_field_index(name))
            cut, field, _ = cut_column(column, schema.field(number), part.dim, part.chunks, marks=True)
            replaced[number] = cut, field
    numbers = [number for number, name in enumerate(schema.names) if name in parts]
    return output.select(numbers, replaced, copies=copies)
