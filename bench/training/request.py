"""The request for one system, sent to its process."""

from __future__ import annotations

from dataclasses import dataclass

from bench.training.facts import Facts


@dataclass(frozen=True, kw_only=True)
class Settings:
    batch_size: int = 65_536
    equal: bool = False
    # blocks ("12") or bytes ("256MiB"); None: the whole dataset
    window: str | None = None
    seed: int = 7
    memory_limit: str | None = None
    block: str | None = None
    cache: str | None = None
    timeline: str | None = None
    # after a third of the epochs, trainers sleep after each batch for as long as one took before; only the last third
    # counts, when prefetching has adapted
    paced: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Request(Settings, Facts):
    """One measurement of one system, with the facts about its files."""

    system: str
    epochs: int
    trainers: int
    # what the model predicts; None: no training
    label: str | None
    # a file through which trainers agree on a pace, and average gradients if they get as many rows
    rendezvous: str | None
    object_store_bytes: int
    cores: int
    python: str | None = None
    # folder for the files of a system that cannot read Parquet
    converted: str = ""

    @property
    def paced_from(self) -> int:
        return max(2, self.epochs // 3)

    @property
    def counts_from(self) -> int:
        """The first epoch that counts if trainers are paced."""
        return (self.paced_from + self.epochs) // 2

    @property
    def content(self) -> str | None:
        """The column that identifies rows of lists and strings alone, which are delivered as a library has them."""
        return None if self.key else self.columns[0]

    @property
    def identity(self) -> str:
        return self.key or self.columns[0]

    def identifies(self, epoch: int) -> bool:
        """Whether the rows of an epoch are identified, and not only counted.

        A key costs next to nothing. The content of rows costs a microsecond where they are objects of Python, so it
        is read in the first epoch and in the last, which do not count.
        """
        return self.content is None or epoch in (0, self.epochs - 1)
