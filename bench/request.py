"""What one system is asked to do: one value, written as JSON for its own process."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

__all__ = ["Request"]


@dataclass(frozen=True)
class Request:
    """One measurement of one system.

    Attributes
    ----------
    system
        The adapter's name in ``bench.peers``.
    paths
        Parquet files, in order.
    columns
        The columns that are read; all of the files' when none were chosen.
    tensor_columns
        Those of them that become tensors: numbers, booleans and timestamps.
    rows
        Rows an epoch.
    key
        A column that holds 0 .. rows - 1 once each, or None.
    sum_columns
        Integer columns whose sums are compared where there is no such key.
    categories
        Integer columns with few values, which a model embeds.
    label
        The column that ``train`` predicts; None does not train.
    rendezvous
        A file through which trainers in actors find each other: to agree on one pace and, where
        they get the same number of rows, to average their gradients; None: each is alone.
    window
        None for the whole dataset, else blocks ("12") or bytes ("256MiB").
    block
        The size to which row groups are joined, with a unit; None: the library's default.
    watch_store
        Whether Ray is asked for the use of its store all the time.
    row_groups
        Of all files together.
    python
        The interpreter that runs the system; None: this one.
    converted
        Where a system that cannot read Parquet keeps these files in a format of its own.
    paced
        After a third of the epochs, trainers idle after each batch for as long as one took to come
        before; the last third counts, when as much is prepared ahead as the new pace allows.
    computing
        As ``paced``, but trainers compute on one core, for twice as long as the cores left need for
        the batch, and after each epoch alone, to tell how much slower they are beside the engine.
    cache, cache_limit
        Where windrow keeps decoded blocks, and how many bytes of them.
    """

    system: str
    paths: tuple[str, ...]
    columns: tuple[str, ...]
    tensor_columns: tuple[str, ...]
    rows: int
    key: str | None
    sum_columns: tuple[str, ...]
    batch_size: int
    epochs: int
    trainers: int
    equal: bool
    window: str | None
    seed: int
    categories: tuple[str, ...]
    label: str | None
    rendezvous: str | None
    memory_limit: str | None
    object_store_bytes: int
    cores: int
    block: str | None = None
    watch_store: bool = False
    row_groups: int = 1
    python: str | None = None
    converted: str = ""
    cache: str | None = None
    cache_limit: str | None = None
    paced: bool = False
    computing: bool = False

    @property
    def paced_from(self) -> int:
        """The first epoch with trainers that take their time."""
        return max(2, self.epochs // 3)

    @property
    def counts_from(self) -> int:
        """The first epoch that counts, where trainers take their time."""
        return (self.paced_from + self.epochs) // 2

    def to_json(self) -> str:
        """Write the request for another process."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Request:
        """Read what ``to_json`` wrote."""
        fields = json.loads(text)
        for name in ("paths", "columns", "tensor_columns", "sum_columns", "categories"):
            fields[name] = tuple(fields[name])
        return Request(**fields)

    @property
    def only_tensors(self) -> bool:
        """Whether every column read becomes a tensor."""
        return self.columns == self.tensor_columns
