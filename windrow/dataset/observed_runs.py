"""What a DatasetPipeline remembers of the runs that it starts: the latest one's timeline."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from windrow.dataset.epoch_iteration import Passes
from windrow.dataset.readable import Readable
from windrow.pipeline.delivery.iteration_methods import BatchIterator, Delivery
from windrow.pipeline.shard.run_record import LatestRun

if TYPE_CHECKING:
    from windrow.pipeline.timeline.timeline import Timeline

__all__ = ["ObservedRuns"]


@dataclass(frozen=True, repr=False)
class ObservedRuns(Readable):
    """Base class of DatasetPipeline: notes the runs that it starts."""

    _latest: LatestRun = field(default_factory=LatestRun, init=False, repr=False, compare=False)

    def timeline(self) -> Timeline:
        """Return the timeline of the latest run that this pipeline has started in this process.

        That run is the latest call of ``split``, ``iterator``, ``shard``, ``iter_epochs`` or another ``iter_*``, during
        the run or after it. All of its shards count, also those that other processes read. For these, keep the list
        that ``split`` returned: the coordinator on Ray ends with the last reference to its shards, and with it what it
        knows. Runs of DataLoader workers are not included.

        Returns
        -------
        Timeline
            Save it as JSON for Perfetto, or as a picture.

        Raises
        ------
        PlanError
            If this pipeline has not been read in this process. A method that changes a pipeline returns another one.

        Examples
        --------
        >>> import windrow
        >>> pipe = windrow.range(100).repeat(1).random_shuffle_each_window(seed=7)
        >>> rows = list(pipe.iter_rows())
        >>> pipe.timeline().save("run.json")
        """
        return self._latest.timeline()

    def _deliver(self, delivery: Delivery) -> BatchIterator:
        return Passes(self._job(), delivery, self._latest)
