"""A chaos run: a cluster, trainers, a calm while, then kills."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.chaos.account import Report, make_report
from bench.chaos.cluster import ChaosCluster, kill
from bench.chaos.crew import Crew
from bench.chaos.expected import Expected
from bench.chaos.killer import Kill, Planned, plan_kills
from bench.chaos.setting import Setting, make_pipe, write_data
from bench.chaos.standby import StandBys
from bench.store import read_spilled

__all__ = ["run_chaos"]

Tell = Callable[[float, str], None]
_Hit = tuple[int | None, str | None]
_LOOK_SECONDS = 0.05
_FIRST_STEPS = 20
_START_SECONDS = 120.0
# after the last kill every trainer must go on within this
_RECOVER_SECONDS = 180.0
_STEPS_AFTER = 50
# a node whose workers were killed as they started has none for up to a minute
_TARGET_SECONDS = 90.0
# a raylet that holds so much loses objects that are needed
_HELD_BYTES = 2**20
_FILLED_SHARE, _FILLED_SECONDS = 0.6, 4.0


def run_chaos(
    setting: Setting,
    *,
    seed: int,
    kills: int,
    kinds: Sequence[str],
    seconds: float,
    calm_seconds: float,
    tell: Tell,
) -> Report:
    """Kill so many times within about so many seconds, and compare."""
    import ray

    with tempfile.TemporaryDirectory(prefix="windrow-chaos-") as name, ChaosCluster(setting) as cluster:
        path = Path(name) / "data.parquet"
        write_data(setting, path)
        expected = Expected(setting, path)
        shards = make_pipe(setting, path).options(executor="ray").split(setting.trainers)
        crew = Crew(setting, cluster.homes, shards, Path(name), expected)
        standbys = StandBys(Path(name), [cluster.head, *cluster.homes], cluster.bare)
        chaos = _Chaos(cluster, crew, standbys, kinds, random.Random(seed))
        chaos.wait_for_steps(_FIRST_STEPS, _START_SECONDS)
        calm = time.time()
        chaos.wait(calm_seconds)
        disturbed = time.time()
        for number, planned in enumerate(plan_kills(seed, kills, seconds, kinds)):
            tell(number / kills, f"{number} kills, next: {planned.kind}")
            chaos.wait(planned.after_seconds)
            chaos.perform(planned)
            if crew.errors:
                break
        chaos.wait_for_steps(_STEPS_AFTER, _RECOVER_SECONDS)
        ended = time.time()
        lives = crew.finish(_RECOVER_SECONDS)
        report = make_report(
            lives,
            chaos.done,
            expected,
            seed=seed,
            trainers=setting.trainers,
            calm=(calm, disturbed),
            disturbed=(disturbed, ended),
        )
        report.errors = crew.errors
        report.ray_seconds = standbys.measure()
        session = Path(ray._private.worker._global_node.get_session_dir_path())
        report.spilled_bytes = read_spilled(session)
        return report


class _Chaos:
    """Does what was planned."""

    def __init__(
        self,
        cluster: ChaosCluster,
        crew: Crew,
        standbys: StandBys,
        kinds: Sequence[str],
        chance: random.Random,
    ) -> None:
        self._cluster, self._crew, self._standbys, self._chance = cluster, crew, standbys, chance
        # where trainers or the coordinator are killed as well, Ray alone decides when they are back
        self._kills_starts_anywhere = {"trainer", "coordinator"}.isdisjoint(kinds)
        self.done: list[Kill] = []

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self._crew.errors:
            time.sleep(min(_LOOK_SECONDS, left))
            self._crew.look()

    def wait_for_steps(self, steps: int, seconds: float) -> None:
        """Wait until every trainer has gone on by some steps."""
        wanted = [before + steps for before in self._crew.pace.steps()]
        until = time.monotonic() + seconds
        while any(now < due for now, due in zip(self._crew.pace.steps(), wanted, strict=True)):
            self.wait(_LOOK_SECONDS)
            if self._crew.errors:
                return
            if time.monotonic() > until:
                self._crew.errors.append(
                    f"within {seconds:.0f} s, trainers came to steps {self._crew.pace.steps()}, not to {wanted}"
                )
                return

    def perform(self, planned: Planned) -> None:
        """Kill one of a kind, as soon as there is one."""
        act = getattr(self, f"_kill_{planned.kind}")
        until = time.monotonic() + _TARGET_SECONDS
        while not self._crew.errors:
            began = time.time()
            hit = act()
            if hit is not None:
                shard, node = hit
                self._standbys.strike(planned.kind, node, began)
                self.done.append(Kill(began, planned.kind, shard))
                self._after(planned.kind)
                return
            if time.monotonic() > until:
                self._crew.errors.append(f"for {_TARGET_SECONDS:.0f} s there was no {planned.kind} to kill")
                return
            self.wait(_LOOK_SECONDS)

    def _after(self, kind: str) -> None:
        if kind in ("raylet", "objects"):
            self._standbys.begin(self._cluster.add_bare_raylet())

    # who was hit: a trainer's shard, and the node of what was killed; None where there was nothing to kill

    def _kill_worker(self) -> _Hit | None:
        return self._kill_one(self._cluster.find_map_workers())

    def _kill_coordinator(self) -> _Hit | None:
        return self._kill_one(self._cluster.find_coordinators())

    def _kill_raylet(self) -> _Hit | None:
        node = self._cluster.kill_bare_raylet(self._chance)
        return None if node is None else (None, node)

    def _kill_trainer(self) -> _Hit | None:
        return self._crew.kill(self._chance)

    def _kill_objects(self) -> _Hit | None:
        node = self._cluster.kill_bare_raylet(self._chance, _HELD_BYTES)
        return None if node is None else (None, node)

    def _kill_starting(self) -> _Hit | None:
        node = self._cluster.kill_starting(self._chance, anywhere=self._kills_starts_anywhere)
        return None if node is None else (None, node)

    def _kill_pressure(self) -> _Hit | None:
        self._cluster.fill_store(self._chance, _FILLED_SHARE, _FILLED_SECONDS)
        return None, None

    def _kill_one(self, found: Sequence[tuple[int, str]]) -> _Hit | None:
        process, node = self._chance.choice(found) if found else (0, "")
        return (None, node) if found and kill(process) else None
