"""The data, pipeline, cluster and kill plan of a chaos run, and the rows that it must deliver."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

import windrow
from windrow.shuffle.order.epoch_plan import plan_epoch
from windrow.shuffle.order.window_order import order_window

COLUMNS = 32
_FACTOR = 0x9E3779B97F4A7C15
_FILTER_MODULUS = 5
# "raylet" kills any raylet, "objects" one that holds map outputs, which are then lost. "starting" kills the
# workers of a node and the first one that Ray starts to replace them, before it has registered. "pressure"
# kills nothing: another task fills an object store, so that Ray has to spill.
KINDS = ("worker", "raylet", "objects", "coordinator", "trainer", "pressure", "starting")
# kill an actor that runs a transform behind the shuffle, and one that places rows for the replicas of a shard
ACTOR, HOST = "actor", "host"
_MIN_SECONDS = 0.2
# more steps than any run has
_NO_END = 2**40


@dataclass(frozen=True)
class Setting:
    seed: int = 7
    groups: int = 48
    group_rows: int = 12_500
    window_groups: int = 16
    # of a transform per block, so that map tasks are often killed while they run
    block_seconds: float = 0.04
    # rows are filtered, so that row counts are unknown until blocks are read
    counted: bool = False
    # a transform behind the shuffle runs on a pool of actors
    prepared: bool = False
    # the groups are those of two sources of a mixture, two thirds of the rows from the first one, without end
    mixed: bool = False
    # shards, and the trainers that read each of them
    trainers: int = 3
    replicas: int = 1
    batch_rows: int = 1_000
    # steps by which a trainer may lead the others, as if they exchanged gradients
    lead: int = 100
    max_rollback_steps: int = 8
    # with trainers and without, in addition to the driver's
    nodes: tuple[int, int] = (2, 1)
    cpus: int = 2
    store_bytes: int = 120 * 2**20

    @property
    def readers(self) -> int:
        """The trainers of all shards; those of a shard follow each other."""
        return self.trainers * self.replicas

    @property
    def sources(self) -> dict[str, range]:
        """The row groups of each file."""
        if not self.mixed:
            return {"data": range(self.groups)}
        border = self.groups // 3
        return {"one": range(border), "other": range(border, self.groups)}

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of faults that have a target."""
        return (*KINDS, *([ACTOR] if self.prepared else []), *([HOST] if self.replicas > 1 else []))

    def keys_of(self, group: int) -> NDArray[np.int64]:
        keys = np.arange(group * self.group_rows, (group + 1) * self.group_rows)
        return keys[keys % _FILTER_MODULUS != 0] if self.counted else keys


def derive(keys: NDArray[np.int64], number: int) -> NDArray[np.int64]:
    return (keys * np.int64(2 * number + 1)) ^ np.int64(_FACTOR >> 2)


def write_data(setting: Setting, folder: Path) -> None:
    names = ["key", *(f"c{number}" for number in range(1, COLUMNS))]
    schema = pa.schema([(name, pa.int64()) for name in names])
    for name, groups in setting.sources.items():
        path = folder / f"{name}.parquet"
        with pq.ParquetWriter(path, schema, use_dictionary=False, compression="none") as writer:
            for group in groups:
                keys = np.arange(group * setting.group_rows, (group + 1) * setting.group_rows)
                arrays = [pa.array(keys), *(pa.array(derive(keys, number)) for number in range(1, COLUMNS))]
                writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _pass_slowly(batch: Any, seconds: float) -> Any:
    time.sleep(seconds)
    return batch


def make_pipeline(setting: Setting, folder: Path) -> windrow.DatasetPipeline:
    """The infinite pipeline that trainers read."""
    sources = {name: _make_source(setting, folder / f"{name}.parquet") for name in setting.sources}
    if setting.mixed:
        pipe = windrow.mixture(sources, {"one": 2, "other": 1}, seed=setting.seed, when_exhausted="repeat")
    else:
        (pipe,) = sources.values()
    if setting.prepared:
        pipe = pipe.map_batches(
            _pass_slowly,
            batch_format="pyarrow",
            fn_args=(setting.block_seconds / 4,),
            compute=windrow.ActorPool(min_size=1, max_size=2),
            num_cpus=0.1,
        )
    return pipe


def _make_source(setting: Setting, path: Path) -> windrow.DatasetPipeline:
    slow = windrow.read_parquet(str(path), target_block_bytes=1).map_batches(
        _pass_slowly, batch_format="pyarrow", fn_args=(setting.block_seconds,)
    )
    if setting.counted:
        slow = slow.map_batches(_filter_keys, batch_format="pyarrow", preserves_rows=False)
    pipe = slow.window(blocks_per_window=setting.window_groups // len(setting.sources)).repeat()
    return pipe.random_shuffle_each_window(seed=setting.seed)


def _filter_keys(batch: pa.Table) -> pa.Table:
    return batch.filter(pa.array(batch["key"].to_numpy() % _FILTER_MODULUS != 0))


@dataclass(frozen=True)
class PlannedKill:
    after_seconds: float
    kind: str


@dataclass(frozen=True)
class Kill:
    """An executed kill and its Unix time; ``shard`` is that of a killed trainer."""

    time: float
    kind: str
    shard: int | None = None


def plan_kills(seed: int, kills: int, seconds: float, kinds: Sequence[str] = KINDS) -> Iterator[PlannedKill]:
    """Plan kills at random times within ``seconds``; each round contains one kill of each kind."""
    rng = random.Random(seed)
    moments = sorted(rng.uniform(0, seconds) for _ in range(kills))
    round_: list[str] = []
    before = 0.0
    for moment in moments:
        if not round_:
            round_ = list(kinds)
            rng.shuffle(round_)
        yield PlannedKill(max(_MIN_SECONDS, moment - before), round_.pop())
        before = moment


def digest_keys(keys: NDArray[np.int64]) -> str:
    return hashlib.blake2b(np.ascontiguousarray(keys, "<i8").tobytes(), digest_size=8).hexdigest()


class Expected:
    """The steps that each trainer must get, by the plan, without an executor."""

    def __init__(self, setting: Setting, folder: Path) -> None:
        self._setting = setting
        self._job = make_pipeline(setting, folder)._job()
        self._order = lru_cache(4)(self._make_order)

    def steps(self, reader: int) -> int:
        """The steps of an epoch."""
        setting, shard = self._setting, reader // self._setting.replicas
        rows = sum(len(setting.keys_of(group)) for group in range(setting.groups))
        full, rest = divmod(rows, setting.trainers * setting.batch_rows)
        return full + (rest // setting.trainers + (shard < rest % setting.trainers) > 0)

    def keys(self, epoch: int, step: int, shard: int) -> NDArray[np.int64]:
        n, B = self._setting.trainers, self._setting.batch_rows
        order = self._order(epoch)
        full = len(order) // (n * B)
        if step < full:
            return order[(step * n + shard) * B : (step * n + shard + 1) * B]
        rest = order[full * n * B :]
        share, more = divmod(len(rest), n)
        first = shard * share + min(shard, more)
        return rest[first : first + share + (shard < more)]

    def digest(self, epoch: int, step: int, reader: int) -> str:
        return digest_keys(self.keys(epoch, step, reader // self._setting.replicas))

    def _make_order(self, epoch: int) -> NDArray[np.int64]:
        job = self._job
        plan = plan_epoch(job.source.blocks, cut=job.cut, seed=job.seed, epoch=epoch)
        windows = []
        for window in range(plan.windows):
            stored = np.concatenate([self._setting.keys_of(int(b)) for b in plan.window_blocks(window)])
            order = order_window(seed=job.seed, epoch=epoch, window=window, rows=len(stored), first_row=0)
            placed = np.empty_like(stored)
            placed[order.epoch_rows(0, len(stored))] = stored
            windows.append(placed)
        return np.concatenate(windows)


class ExpectedMixture(Expected):
    """The same for a mixture, read here by one shard: a step has the same rows for any number of them."""

    def __init__(self, setting: Setting, folder: Path) -> None:
        self._setting = setting
        plain = replace(setting, block_seconds=0.0, prepared=False)
        self._shard = make_pipeline(plain, folder).options(executor="threads").iterator()
        self._steps = self._shard.iter_batches(setting.trainers * setting.batch_rows)
        self._digests: list[list[str]] = []

    def steps(self, reader: int) -> int:
        return _NO_END

    def digest(self, epoch: int, step: int, reader: int) -> str:
        while len(self._digests) <= step:
            keys = next(self._steps)["key"]
            self._digests.append([digest_keys(part) for part in np.split(keys, self._setting.trainers)])
        return self._digests[step][reader // self._setting.replicas]
