"""The request for one system, sent to its process."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is the same for all systems of a measurement.

    Attributes
    ----------
    window
        None for the whole dataset, or blocks ("12") or bytes ("256MiB").
    block
        Target block size with a unit; None: the library's default.
    paced
        After a third of the epochs, trainers sleep after each batch for the time that a batch took
        before. Only the last third counts, when prefetching has adapted to the new pace.
    computing
        Like ``paced``, but trainers compute on one core, for twice as long as the remaining cores need for
        a batch. After each epoch they compute alone, to measure their slowdown by the engine.
    cache
        Where windrow caches decoded blocks.
    timeline
        Where windrow on Ray draws the timeline of its run; None: nowhere.
    """

    batch_size: int = 65_536
    equal: bool = False
    window: str | None = None
    seed: int = 7
    memory_limit: str | None = None
    block: str | None = None
    cache: str | None = None
    timeline: str | None = None
    paced: bool = False
    computing: bool = False


@dataclass(frozen=True, kw_only=True)
class Request(Settings):
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
    rows, decoded_bytes
        Rows of an epoch, and their bytes.
    integer_columns
        Those that hold integers, which the model embeds.
    key
        A column that contains 0 .. rows - 1 once each; None: rows are identified by their content.
    label
        The column that the model predicts; None: no training.
    rendezvous
        A file through which trainers in actors find each other, to agree on a common pace and, if
        they get the same number of rows, to average their gradients; None: each trains alone.
    row_groups
        Number of row groups in all files.
    python
        Python interpreter that runs the system; None: the current one.
    converted
        Folder for converted files of a system that cannot read Parquet.
    """

    system: str
    paths: tuple[str, ...]
    columns: tuple[str, ...]
    tensor_columns: tuple[str, ...]
    rows: int
    decoded_bytes: int
    integer_columns: tuple[str, ...]
    key: str | None
    epochs: int
    trainers: int
    label: str | None
    rendezvous: str | None
    object_store_bytes: int
    cores: int
    row_groups: int = 1
    python: str | None = None
    converted: str = ""
    list_columns: tuple[str, ...] = ()

    @property
    def paced_from(self) -> int:
        """The first epoch in which trainers are paced or compute."""
        return max(2, self.epochs // 3)

    @property
    def counts_from(self) -> int:
        """The first epoch that counts if trainers are paced or compute."""
        return (self.paced_from + self.epochs) // 2

    @property
    def only_tensors(self) -> bool:
        """Whether every column read becomes a tensor."""
        return self.columns == self.tensor_columns

    @property
    def content(self) -> str | None:
        """The column that identifies rows of lists and strings alone, which are delivered as a library has them."""
        return None if self.tensor_columns else self.columns[0]

    @property
    def identity(self) -> str:
        """The column that identifies rows."""
        return self.key or self.columns[0]

    def identifies(self, epoch: int) -> bool:
        """Whether the rows of an epoch are identified, and not only counted.

        A key costs next to nothing. The content of rows costs a microsecond where they are objects of Python, so it
        is read in the first epoch and in the last, which do not count.
        """
        return self.content is None or epoch in (0, self.epochs - 1)
