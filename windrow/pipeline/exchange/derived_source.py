"""`DerivedSource`: a source whose rows an operation makes of the rows of other sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from windrow.core.errors import PlanError
from windrow.core.source import SourceIdentity, prepare_source
from windrow.io.catalog.listed_source import NumberedRows
from windrow.io.catalog.manifest import digest_parts, digest_schema
from windrow.pipeline.exchange.parent import Parent

__all__ = ["DEFAULT_BLOCK_BYTES", "DerivedSource"]

DEFAULT_BLOCK_BYTES = 64 * 2**20


@dataclass(frozen=True, eq=False, repr=False)
class DerivedSource(NumberedRows):
    """What all derived sources share; a `Source`, so that windows, shards and states work on it."""

    parents: tuple[Parent, ...]
    # the call in errors and states: "sort('x')"
    call: str
    # how the dataset with this call at its end is printed
    text: str

    def __repr__(self) -> str:
        return self.text

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the parents' data and of the operation."""
        return self.derivation_digest

    @property
    def derivation_digest(self) -> str:
        """A digest of the parents' data and of the call."""
        return digest_parts([self.call.encode(), *(parent.digest for parent in self.parents)])

    def identity(self, files: int | None = None) -> SourceIdentity:
        """Raises a `PlanError` unless ``files`` is 1: what was appended to the parents changes all rows."""
        if files not in (None, 1):
            raise PlanError(f"{self.call} cannot identify its first {files} files separately")
        return SourceIdentity(
            fingerprint=self.fingerprint,
            schema=digest_schema(self.schema),
            files=1,
            rows=int(self.blocks.rows.sum()),
            block_bytes=DEFAULT_BLOCK_BYTES,
            filter="",
        )

    @property
    def contents(self) -> str:
        schema, rows = self.schema.serialize().to_pybytes(), self.blocks.rows.tobytes()
        return digest_parts((self.fingerprint.encode(), schema, rows))

    @property
    def null_counts(self) -> Mapping[str, int | None]:
        return dict.fromkeys(self.schema.names)

    def prepare(self) -> None:
        """Do the work that the parents need before their blocks have addresses."""
        for parent in self.parents:
            prepare_source(parent.source)
