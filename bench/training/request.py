"""The request for one system, sent as JSON to its process."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


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
        Columns to read; all columns of the files by default.
    tensor_columns
        Those that become tensors: numbers, booleans and timestamps.
    list_columns
        Those that hold lists.
    rows
        Rows of an epoch.
    key
        A column that contains 0 .. rows - 1 once each, or None.
    sum_columns
        Integer columns whose sums are compared if there is no such key.
    categories
        Integer columns with few distinct values, which the model embeds.
    label
        The column that the model predicts; None: no training.
    rendezvous
        A file through which trainers in actors find each other, to agree on a common pace and, if
        they get the same number of rows, to average their gradients; None: each trains alone.
    window
        None for the whole dataset, or blocks ("12") or bytes ("256MiB").
    block
        Target block size with a unit; None: the library's default.
    watch_store
        Whether the use of Ray's object store is polled.
    row_groups
        Number of row groups in all files.
    python
        Python interpreter that runs the system; None: the current one.
    converted
        Folder for converted files of a system that cannot read Parquet.
    paced
        After a third of the epochs, trainers sleep after each batch for the time that a batch took
        before. Only the last third counts, when prefetching has adapted to the new pace.
    computing
        Like ``paced``, but trainers compute on one core, for twice as long as the remaining cores need for
        a batch. After each epoch they compute alone, to measure their slowdown by the engine.
    cache
        Where windrow caches decoded blocks.
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
    list_columns: tuple[str, ...] = ()
    paced: bool = False
    computing: bool = False

    @property
    def paced_from(self) -> int:
        """The first epoch in which trainers are paced or compute."""
        return max(2, self.epochs // 3)

    @property
    def counts_from(self) -> int:
        """The first epoch that counts if trainers are paced or compute."""
        return (self.paced_from + self.epochs) // 2

    def to_json(self) -> str:
        """Write the request for another process."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Request:
        """Read what ``to_json`` wrote."""
        fields = json.loads(text)
        for name in ("paths", "columns", "tensor_columns", "list_columns", "sum_columns", "categories"):
            fields[name] = tuple(fields[name])
        return Request(**fields)

    @property
    def only_tensors(self) -> bool:
        """Whether every column read becomes a tensor."""
        return self.columns == self.tensor_columns

    @property
    def content(self) -> str | None:
        """The column that identifies rows of lists and strings alone, which are delivered as a library has them."""
        return None if self.tensor_columns else self.columns[0]

    def identifies(self, epoch: int) -> bool:
        """Whether the rows of an epoch are identified, and not only counted.

        A key costs next to nothing. The content of rows costs a microsecond where they are objects of Python, so it
        is read in the first epoch and in the last, which do not count.
        """
        return self.content is None or epoch in (0, self.epochs - 1)
