"""``python -m bench chaos``: kills processes of every kind while trainers read, and compares the delivered rows."""

from __future__ import annotations

import argparse
import operator
import os
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from bench.chaos.analysis import Report, draw_report, make_report
from bench.chaos.cluster import NODE_KINDS, ChaosCluster, StandbyTasks
from bench.chaos.setting import (
    ACTOR,
    HOST,
    KINDS,
    Expected,
    ExpectedMixture,
    Kill,
    PlannedKill,
    Setting,
    make_pipeline,
    plan_kills,
    write_data,
)
from bench.chaos.trainers import TrainerGroup
from bench.system.console import ProgressLine, add_json, read_count, write_json
from bench.system.machine import describe_machine
from bench.system.ray_cluster import read_spilled

_POLL_SECONDS = 0.05
_FIRST_STEPS = 20
_START_SECONDS = 120.0
# every trainer must continue within this time after the last kill
_RECOVER_SECONDS = 180.0
_STEPS_AFTER = 50
# a node whose workers were killed while starting has no workers for up to a minute
_TARGET_SECONDS = 90.0
# a raylet that holds this much loses objects that are needed
_HELD_BYTES = 2**20
_FILLED_SHARE, _FILLED_SECONDS = 0.6, 4.0
_KILL_EVERY_SECONDS = 5.0
_BASELINE_SECONDS = 20.0


def _run_plan(
    setting: Setting, options: argparse.Namespace, kinds: Sequence[str], kills: int, line: ProgressLine
) -> Report:
    seed, seconds = options.seed, 60 * options.minutes
    import ray

    with tempfile.TemporaryDirectory(prefix="windrow-chaos-") as name, ChaosCluster(setting) as cluster:
        write_data(setting, Path(name))
        expected = (ExpectedMixture if setting.mixed else Expected)(setting, Path(name))
        pipe = make_pipeline(setting, Path(name)).options(executor="ray")
        if setting.replicas == 1:
            shards = pipe.split(setting.trainers)
        else:
            shards = [one for each in pipe.split(setting.trainers, replicas=setting.replicas) for one in each]
        trainers = TrainerGroup(setting, cluster.trainer_nodes, shards, Path(name), expected)
        standbys = StandbyTasks(Path(name), [cluster.head, *cluster.trainer_nodes], cluster.data_nodes)
        chaos = _KillExecutor(cluster, trainers, standbys, kinds, random.Random(seed))
        chaos.wait_for_steps(_FIRST_STEPS, _START_SECONDS)
        baseline = time.time()
        chaos.wait(min(_BASELINE_SECONDS, seconds / 4))
        disturbed = time.time()
        for number, planned in enumerate(plan_kills(seed, kills, seconds, kinds)):
            line.update(number / kills, f"{number} kills, next: {planned.kind}")
            chaos.wait(planned.after_seconds)
            chaos.execute(planned)
            if trainers.errors:
                break
        chaos.wait_for_steps(_STEPS_AFTER, _RECOVER_SECONDS)
        ended = time.time()
        incarnations = trainers.finish(_RECOVER_SECONDS)
        report = make_report(
            incarnations,
            chaos.done,
            expected,
            seed=seed,
            trainers=setting.readers,
            baseline=(baseline, disturbed),
            disturbed=(disturbed, ended),
        )
        report.errors = trainers.errors
        report.ray_seconds = standbys.measure()
        session = Path(ray._private.worker._global_node.get_session_dir_path())
        report.spilled_bytes = read_spilled(session)
        return report


class _KillExecutor:
    def __init__(
        self,
        cluster: ChaosCluster,
        trainers: TrainerGroup,
        standbys: StandbyTasks,
        kinds: Sequence[str],
        rng: random.Random,
    ) -> None:
        self._cluster, self._trainers, self._standbys, self._rng = cluster, trainers, standbys, rng
        # if trainers or the coordinator are killed too, their restart time depends on Ray alone
        self._kills_starts_anywhere = {"trainer", "coordinator"}.isdisjoint(kinds)
        self.done: list[Kill] = []

    def wait(self, seconds: float) -> None:
        """Wait, and record trainers that end."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self._trainers.errors:
            time.sleep(min(_POLL_SECONDS, left))
            self._trainers.look()

    def wait_for_steps(self, steps: int, seconds: float) -> None:
        wanted = [before + steps for before in self._trainers.count_steps()]
        until = time.monotonic() + seconds
        while not self._trainers.errors and any(map(operator.lt, self._trainers.count_steps(), wanted)):
            self.wait(_POLL_SECONDS)
            if time.monotonic() > until:
                self._trainers.errors.append(
                    f"after {seconds:.0f} s, trainers are at steps {self._trainers.count_steps()}, not {wanted}"
                )

    def execute(self, planned: PlannedKill) -> None:
        until = time.monotonic() + _TARGET_SECONDS
        while not self._trainers.errors:
            began = time.time()
            hit = self._kill(planned.kind)
            if hit is not None:
                shard, node = hit
                self.done.append(Kill(began, planned.kind, shard))
                self._standbys.kill_task(self.done[-1], node)
                if planned.kind in NODE_KINDS:
                    self._standbys.begin(self._cluster.add_data_node(), "worker", "node")
                return
            if time.monotonic() > until:
                self._trainers.errors.append(
                    f"for {_TARGET_SECONDS:.0f} s there was no {planned.kind} to kill"
                )
            self.wait(_POLL_SECONDS)

    def _kill(self, kind: str) -> tuple[int | None, str | None] | None:
        """The shard of a killed trainer, and the node of the target; None if there was no target."""
        cluster, rng = self._cluster, self._rng
        if kind == "trainer":
            return self._trainers.kill(rng)
        if kind == "pressure":
            cluster.fill_store(rng, _FILLED_SHARE, _FILLED_SECONDS)
            return None, None
        if kind in NODE_KINDS:
            node = cluster.kill_data_node(rng, _HELD_BYTES if kind == "objects" else 0)
        elif kind == "starting":
            node = cluster.kill_starting(rng, anywhere=self._kills_starts_anywhere)
        else:
            node = cluster.kill_worker(rng, kind)
        return None if node is None else (None, node)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=2.0, help="duration of the phase with kills")
    parser.add_argument("--seed", type=int, default=0, help="seed of the kill plan")
    parser.add_argument("--kills", type=int, help="number of kills (default: one per 5 s)")
    parser.add_argument("--cpus", type=int, default=Setting.cpus, help="logical CPUs of each raylet")
    parser.add_argument(
        "--only",
        choices=(*KINDS, ACTOR, HOST),
        action="append",
        metavar="KIND",
        help=f"inject only this kind: {', '.join(KINDS)}; with --prepared also {ACTOR}, with --replicas {HOST}",
    )
    parser.add_argument(
        "--counted", action="store_true", help="filter rows: their number is found by reading"
    )
    parser.add_argument("--prepared", action="store_true", help="transform on actors, and kill these too")
    parser.add_argument("--mixed", action="store_true", help="read a mixture of two sources")
    parser.add_argument("--replicas", type=read_count, default=1, help="trainers on each shard (default: 1)")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Run; the exit status is 0 if the delivered rows did not differ."""
    seconds = 60 * options.minutes
    kills = options.kills if options.kills is not None else round(seconds / _KILL_EVERY_SECONDS)
    if seconds <= 0 or kills < 1:
        raise ValueError("--minutes and --kills must be more than 0")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if options.mixed and options.counted:
        raise ValueError("--mixed and --counted exclude each other: a mixture knows the rows of its sources")
    names = ("cpus", "counted", "prepared", "mixed", "replicas")
    setting = Setting(**{name: getattr(options, name) for name in names})
    kinds = options.only or setting.kinds
    line = ProgressLine()
    line.start(f"{kills} kills in {options.minutes:g} minutes, seed {options.seed}")
    report = _run_plan(setting, options, kinds, kills, line)
    line.finish("same rows in the same order" if report.passed else "FAILED")
    print(draw_report(report))
    write_json(options, {**asdict(report), "machine": describe_machine()})
    return int(not report.passed)
