"""A chaos run: a cluster, trainers, a calm while, then kills."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.chaos.account import Report, make_report
from bench.chaos.cluster import ChaosCluster, kill
from bench.chaos.crew import Crew
from bench.chaos.expected import Expected
from bench.chaos.killer import Kill, Planned, plan_kills
from bench.chaos.setting import Setting, make_pipe, write_data
from bench.store import read_spilled

__all__ = ["run_chaos"]

Tell = Callable[[float, str], None]
_LOOK_SECONDS = 0.05
_FIRST_STEPS = 20
_START_SECONDS = 120.0
# after the last kill every trainer must go on within this
_RECOVER_SECONDS = 180.0
_STEPS_AFTER = 50
_TARGET_SECONDS = 30.0
# a raylet that holds so much loses objects that are needed
_HELD_BYTES = 2**20
_FILLED_SHARE, _FILLED_SECONDS = 0.6, 4.0


def run_chaos(
    setting: Setting, *, seed: int, kills: int, seconds: float, calm_seconds: float, tell: Tell
) -> Report:
    """Kill so many times within about so many seconds, and compare."""
    import ray

    with tempfile.TemporaryDirectory(prefix="windrow-chaos-") as name, ChaosCluster(setting) as cluster:
        path = Path(name) / "data.parquet"
        write_data(setting, path)
        expected = Expected(setting, path)
        shards = make_pipe(setting, path).options(executor="ray").split(setting.trainers)
        crew = Crew(setting, cluster.homes, shards, Path(name), expected)
        chaos = _Chaos(cluster, crew, random.Random(seed))
        chaos.wait_for_steps(_FIRST_STEPS, _START_SECONDS)
        calm = time.time()
        chaos.wait(calm_seconds)
        disturbed = time.time()
        for number, planned in enumerate(plan_kills(seed, kills, seconds)):
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
        session = Path(ray._private.worker._global_node.get_session_dir_path())
        report.spilled_bytes = read_spilled(session)
        return report


class _Chaos:
    """Does what was planned."""

    def __init__(
        self,
        cluster: ChaosCluster,
        crew: Crew,
        chance: random.Random,
    ) -> None:
        self._cluster, self._crew, self._chance = cluster, crew, chance
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
                self.done.append(Kill(began, planned.kind, hit if planned.kind == "trainer" else None))
                self._after(planned.kind)
                return
            if time.monotonic() > until:
                self._crew.errors.append(f"for {_TARGET_SECONDS:.0f} s there was no {planned.kind} to kill")
                return
            self.wait(_LOOK_SECONDS)

    def _after(self, kind: str) -> None:
        if kind in ("raylet", "objects"):
            self._cluster.add_bare_raylet()

    def _kill_worker(self) -> int | None:
        return self._kill_one(self._cluster.find_map_workers())

    def _kill_coordinator(self) -> int | None:
        return self._kill_one(self._cluster.find_coordinators())

    def _kill_raylet(self) -> int | None:
        return 0 if self._cluster.kill_bare_raylet(self._chance) else None

    def _kill_trainer(self) -> int | None:
        return self._crew.kill(self._chance)

    def _kill_objects(self) -> int | None:
        return 0 if self._cluster.kill_bare_raylet(self._chance, _HELD_BYTES) else None

    def _kill_pressure(self) -> int | None:
        self._cluster.fill_store(self._chance, _FILLED_SHARE, _FILLED_SECONDS)
        return 0

    def _kill_one(self, processes: list[int]) -> int | None:
        return 0 if processes and kill(self._chance.choice(processes)) else None
