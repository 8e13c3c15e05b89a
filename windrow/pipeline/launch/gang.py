"""`run_gang`: trainers on Ray that start, meet and restart together; and `ray_train_config`, for those of Ray Train."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

from windrow.core.errors import PlanError
from windrow.core.optional_dependencies import require
from windrow.pipeline.delivery.delivery import check_number
from windrow.shuffle.order.shard_assignment import Equal, check_equal

if TYPE_CHECKING:
    from windrow.pipeline.executors.ray.gang.actors import MeetingClient
    from windrow.pipeline.shard.shard import Shard

Strategy = Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]


@dataclass
class GangContext:
    """What a trainer of `run_gang` knows and holds.

    Attributes
    ----------
    rank, world_size
        Index of this trainer, and number of trainers.
    local_rank, local_world_size
        The same among the trainers of this node.
    addresses
        (world_size,) the host address of each trainer, by rank.
    attempt
        How often the gang was restarted before.
    shards
        This trainer's shard of each dataset, by name.
    saved
        What this trainer passed to the last `save` that counts; None without one.

    Examples
    --------
    >>> import windrow
    >>> def train(context: windrow.GangContext) -> int:
    ...     seen = context.saved or 0
    ...     for epoch in context.shard.iter_epochs():
    ...         for batch in epoch.iter_batches(batch_size=2):
    ...             seen += len(batch["id"])
    ...         context.save(seen)
    ...     context.barrier(timeout=60)
    ...     return seen
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    addresses: tuple[str, ...]
    attempt: int
    shards: Mapping[str, Shard]
    saved: Any
    _meeting: MeetingClient = field(repr=False)
    _barriers: int = field(default=0, repr=False)
    _saves: int = field(default=0, repr=False)

    @property
    def shard(self) -> Shard:
        """The shard of the only dataset.

        Raises
        ------
        PlanError
            If the gang has no dataset, or several.
        """
        if len(self.shards) != 1:
            names = ", ".join(map(repr, self.shards)) or "none"
            raise PlanError(
                f"context.shard needs a gang with one dataset, and it has {names}: use context.shards"
            )
        return next(iter(self.shards.values()))

    def barrier(self, timeout: float = 300.0) -> None:
        """Wait until every trainer has called this as often as this one.

        Parameters
        ----------
        timeout
            Seconds to wait.

        Raises
        ------
        StallError
            If a trainer does not come in time, or has returned; the message names it.
        """
        self._meeting.barrier(self._barriers, check_seconds("timeout", timeout))
        self._barriers += 1

    def save(self, value: Any = None, *, timeout: float = 300.0) -> None:
        """Make this the point from which all trainers go on after a failure.

        All trainers call it after the same step. It counts once all of them have; until then the one before
        counts. It holds the states of the shards and each trainer's ``value``. Both are kept in memory on the
        node that called `run_gang`, so keep large models in files and pass their path. A save waits until the
        one before it counts.

        Parameters
        ----------
        value
            What this trainer finds in ``saved`` after a restart; anything that can be pickled.
        timeout
            Seconds to wait for the save before this one.

        Raises
        ------
        StateError
            If another trainer saves at another place of the data.
        StallError
            If the save before does not count in time; the message names the trainers that have not called it.
        """
        states = {name: shard.state_dict() for name, shard in self.shards.items()}
        self._meeting.save(self._saves, states, value, check_seconds("timeout", timeout))
        self._saves += 1


def _run_trainer(
    train: Callable[[GangContext], Any], shards: Mapping[str, Shard], meeting: MeetingClient, **facts: Any
) -> Any:
    """Call the user's function in a trainer; ``facts`` are the other attributes of its context."""
    return train(GangContext(shards=shards, _meeting=meeting, **facts))


def run_gang(
    train: Callable[[GangContext], Any],
    n: int,
    *,
    dataset: Any = None,
    equal: Equal = True,
    num_cpus: float = 1,
    num_gpus: float = 0,
    resources: Mapping[str, float] | None = None,
    strategy: Strategy = "PACK",
    max_restarts: int = 0,
    state_dict: Mapping[str, Any] | None = None,
    start_timeout: float = 300.0,
) -> list[Any]:
    """Run a function in ``n`` trainers on Ray at the same time, each with a shard; return what they return.

    All trainers start together or not at all. If one raises or dies, all are stopped and started again, and go
    on from the last `GangContext.save`. Each trainer's process has the variables of torchrun (RANK, WORLD_SIZE,
    LOCAL_RANK, MASTER_ADDR, ...), so that ``torch.distributed.init_process_group()`` needs no arguments.

    Parameters
    ----------
    train
        Called with a `GangContext` in each trainer.
    n
        Number of trainers.
    dataset
        A pipeline or dataset, or a dict of them by name; each is split into n shards, read where the trainers are.
    equal
        As for ``split``; True by default, since trainers that work together need equal numbers of steps.
    num_cpus, num_gpus, resources
        What each trainer reserves, as for Ray's actors; ``resources`` are Ray's custom ones. With a whole number
        of GPUs, every trainer sees those of all trainers of its node, so that ``cuda:{local_rank}`` is its own.
    strategy
        How Ray places trainers on nodes: ``"PACK"``, ``"SPREAD"``, ``"STRICT_PACK"`` or ``"STRICT_SPREAD"``.
    max_restarts
        How often the gang is started again.
    state_dict
        A state to begin with: of the dataset, or a dict of them by name.
    start_timeout
        Seconds to wait until all trainers can start.

    Returns
    -------
    list
        (n,) what ``train`` returned, by rank.

    Raises
    ------
    PlanError
        If an argument is invalid, or Ray is not installed.
    StateError
        If ``state_dict`` does not match the dataset.
    StallError
        If the trainers cannot start in time; the message names what the cluster lacks.
    TransformError
        If ``train`` raised or a trainer's process died, and no restart is left.

    Examples
    --------
    >>> import windrow
    >>> pipe = windrow.range(8).repeat(2).random_shuffle_each_window(seed=7)
    >>> def train(context):
    ...     return sum(len(batch["id"]) for epoch in context.shard.iter_epochs() for batch in epoch.iter_batches())
    >>> windrow.run_gang(train, 2, dataset=pipe, num_cpus=0)
    Traceback (most recent call last):
    ...
    windrow.core.errors.PlanError: a trainer must reserve something: give num_cpus, num_gpus or resources

    With ``num_cpus=1``, the default, this returns ``[8, 8]``.
    """
    if not callable(train):
        raise PlanError(f"train={train!r} must be a function of a GangContext")
    if strategy not in get_args(Strategy):
        raise PlanError(f"strategy={strategy!r} must be one of {', '.join(map(repr, get_args(Strategy)))}")
    size, equal = check_number("n", n, 1), check_equal(equal)
    datasets = _by_name(dataset)
    resources = _check_resources(num_cpus, num_gpus, resources)
    max_restarts = check_number("max_restarts", max_restarts, 0)
    states = _states_by_name(state_dict, datasets, named=isinstance(dataset, Mapping))
    start_timeout = check_seconds("start_timeout", start_timeout)
    require("ray", "ray", "run_gang()")
    from windrow.pipeline.executors.ray.gang.trainers import GangPlan, run_trainers

    return run_trainers(
        GangPlan(
            train=partial(_run_trainer, train),
            size=size,
            datasets=datasets,
            equal=equal,
            resources=resources,
            strategy=strategy,
            max_restarts=max_restarts,
            states=states,
            start_timeout=start_timeout,
        )
    )


def check_seconds(name: str, value: Any) -> float:
    """Return a number of seconds; raise PlanError if it is not one above 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise PlanError(f"{name}={value!r} must be a number of seconds above 0")
    return float(value)


def _by_name(dataset: Any) -> dict[str, Any]:
    if dataset is None:
        return {}
    datasets = dict(dataset) if isinstance(dataset, Mapping) else {"train": dataset}
    for name, each in datasets.items():
        if not callable(getattr(each, "split", None)):
            raise PlanError(
                f"dataset {name!r} is a {type(each).__name__}: give a pipeline or dataset of windrow, or a dict of them"
            )
    return datasets


def _states_by_name(
    state_dict: Mapping[str, Any] | None, datasets: Mapping[str, Any], *, named: bool
) -> dict[str, Any]:
    if state_dict is None:
        return {}
    states = dict(state_dict) if named else {"train": state_dict}
    unknown = [name for name in states if name not in datasets]
    if unknown:
        raise PlanError(f"state_dict has a state for {unknown[0]!r}, and no dataset has that name")
    return states


def _check_resources(num_cpus: Any, num_gpus: Any, resources: Mapping[str, float] | None) -> dict[str, float]:
    amounts = {"CPU": num_cpus, "GPU": num_gpus, **(resources or {})}
    for name, amount in amounts.items():
        if isinstance(amount, bool) or not isinstance(amount, (int, float)) or not 0 <= amount < 2**31:
            raise PlanError(
                f"a trainer cannot reserve {name}: {amount!r}, which must be a number of 0 or more"
            )
    needed = {name: amount for name, amount in amounts.items() if amount}
    if not needed:
        raise PlanError("a trainer must reserve something: give num_cpus, num_gpus or resources")
    return needed


def ray_train_config(*, equal: Equal = True) -> Any:
    """Return the ``dataset_config`` with which ``ray.train.get_dataset_shard`` returns windrow's shards.

    Every worker gets one shard of each pipeline or dataset among the trainer's ``datasets``, on its node. When
    Ray Train restarts its workers, also with another number of them, there are new shards: load the state
    from the last checkpoint into each with ``Shard.load_state_dict``. Datasets of Ray Data among them are
    split as Ray does by itself.

    Parameters
    ----------
    equal
        As for ``DatasetPipeline.split``; True by default, since workers that train together need equal
        numbers of steps.

    Returns
    -------
    ray.train.DataConfig

    Raises
    ------
    PlanError
        If Ray is not installed, or ``equal`` is not one of its values.

    Examples
    --------
    >>> import windrow
    >>> pipe = windrow.range(10).repeat(2).random_shuffle_each_window(seed=7)
    >>> config = windrow.ray_train_config()
    >>> [list(shards) for shards in config.configure({"train": pipe}, 2, None, None)]
    [['train'], ['train']]

    With Ray Train: ``TorchTrainer(train, datasets={"train": pipe}, dataset_config=windrow.ray_train_config())``.
    """
    require("ray", "ray", "ray_train_config()")
    from windrow.pipeline.executors.ray.data.train_config import ShardConfig

    return ShardConfig(check_equal(equal))
