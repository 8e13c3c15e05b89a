"""``python -m bench scale``: validate the simulator, measure planning, simulate clusters."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

from bench.options import add_throughput, read_throughput
from bench.progress import ProgressLine
from bench.scale.costs import Costs, read_costs
from bench.scale.planning import PlanningCost, measure_planning
from bench.scale.report import draw_outcomes, draw_planning, draw_ratios
from bench.scale.run import Outcome
from bench.scale.settings import SETTINGS, Setting
from bench.scale.validation import Ratio, measure_costs, measure_ray_costs, validate_here
from bench.sizes import read_size

__all__ = ["add_scale", "run_scale"]

# Consumption of a rate-limited trainer: an equal share of the 8.18 GB/s that Ray Datasets reached on 16 nodes.
_TRAINER_BYTES = 8.18e9 / 16
_MAX_ERROR = 0.15


def add_scale(parser: argparse.ArgumentParser) -> None:
    """Options of ``scale``."""
    group = parser.add_argument_group("run")
    group.add_argument(
        "--check", action="store_true", help="only validate: predict runs on this machine and measure them"
    )
    group.add_argument("--rounds", type=int, default=1, help="validation rounds (default: %(default)s)")
    group.add_argument(
        "--patience",
        type=float,
        default=60.0,
        help="maximum seconds to wait until the machine is idle (%(default)s)",
    )
    group.add_argument("--setting", help="only settings whose name contains this")
    group.add_argument("--costs", type=Path, metavar="PATH", help="unit costs as JSON, instead of measuring")
    group.add_argument(
        "--plain",
        action="store_true",
        help="values of full width, like floats (default: packed widths as in the dlrm data)",
    )
    group.add_argument("--folder", type=Path, default=Path(".bench"), help="folder of generated data")
    group = parser.add_argument_group("cluster")
    group.add_argument(
        "--nic", type=float, default=10.0, help="network bandwidth of a node in Gbit/s (default: %(default)s)"
    )
    group.add_argument(
        "--connections", type=int, default=4, help="connections per task to object storage (%(default)s)"
    )
    group.add_argument(
        "--connection", default="87MB", help="bytes per second of a connection (default: %(default)s)"
    )
    group.add_argument(
        "--cpu-speed",
        type=float,
        default=1.0,
        help="speed of a CPU relative to this machine (default: %(default)s)",
    )
    group.add_argument(
        "--trainer", help="bytes per second that a trainer consumes (default: its share of 8.18 GB/s)"
    )
    parser.add_argument("--json", type=Path, metavar="PATH", help="write all results as JSON")


def run_scale(options: argparse.Namespace) -> int:
    """Validate, plan and simulate; the exit status is 0 if predictions are accurate enough."""
    line = ProgressLine(sys.stderr)
    ratios = _validate(options, line) if options.check else []
    if ratios:
        print(draw_ratios(ratios), flush=True)
    planned = [] if options.check else _plan(options)
    costs = None if options.check else _find_costs(options, line)
    outcomes = [] if costs is None else _simulate(options, costs, line)
    if outcomes:
        print(draw_outcomes(outcomes))
    if options.json is not None:
        _write(options.json, ratios, planned, costs, outcomes)
    return int(any(abs(one.ratio - 1) > _MAX_ERROR for one in ratios))


def _validate(options: argparse.Namespace, line: ProgressLine) -> list[Ratio]:
    config = read_throughput(
        _throughput(["--executor", "both", "--peers", "none", "--folder", str(options.folder)])
    )
    ray_costs = read_costs(options.costs) if options.costs else measure_ray_costs(Costs())
    return list(validate_here(config, line, options.rounds, ray_costs, options.patience))


def _throughput(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_throughput(parser)
    return parser.parse_args(arguments)


def _chosen_settings(options: argparse.Namespace) -> list[Setting]:
    return [setting for name, setting in SETTINGS.items() if (options.setting or "") in name]


def _plan(options: argparse.Namespace) -> list[PlanningCost]:
    sizes = {
        setting.row_groups: (
            setting.row_groups,
            setting.group_bytes,
            setting.windows,
            setting.cluster.nodes,
            setting.cluster.cpus,
        )
        for setting in _chosen_settings(options)
    }
    planned = [measure_planning(*size) for size in sizes.values()]
    print(draw_planning(planned), flush=True)
    return planned


def _find_costs(options: argparse.Namespace, line: ProgressLine) -> Costs:
    if options.costs is not None:
        return read_costs(options.costs)
    from bench.config import find_data

    config = read_throughput(_throughput(["--folder", str(options.folder)]))
    line.start("measuring unit costs")
    costs = measure_costs("windrow-ray", find_data(config, line), measure_ray_costs(Costs()))
    line.finish(", ".join(f"{name} {value:.3g}" for name, value in asdict(costs).items()))
    return costs


def _simulate(
    options: argparse.Namespace, costs: Costs, line: ProgressLine
) -> list[tuple[Setting, str, Outcome]]:
    outcomes = []
    trainer_bytes = read_size(options.trainer, "--trainer") if options.trainer else _TRAINER_BYTES
    for chosen in _chosen_settings(options):
        setting = replace(chosen, packs=not options.plain).on(
            nic_gbit=options.nic,
            connection_bytes=read_size(options.connection, "--connection"),
            connections=options.connections,
            cpu_speed=options.cpu_speed,
        )
        for trainers, taken in (("unbounded", None), (f"{trainer_bytes / 1e9:.2f} GB/s each", trainer_bytes)):
            line.start(f"{setting.name}, trainers {trainers}")
            outcome = setting.run(costs, taken)
            line.finish(f"{outcome.bytes_per_second / 1e9:.1f} GB/s")
            outcomes.append((setting, trainers, outcome))
    return outcomes


def _write(
    path: Path,
    ratios: list[Ratio],
    planned: list[PlanningCost],
    costs: Costs | None,
    outcomes: list[tuple[Setting, str, Outcome]],
) -> None:
    fields = {
        "ratios": [{**asdict(one), "ratio": one.ratio} for one in ratios],
        "planning": [asdict(one) for one in planned],
        "costs": None if costs is None else asdict(costs),
        "runs": [
            {"setting": asdict(setting), "trainers": trainers, "outcome": outcome.to_dict()}
            for setting, trainers, outcome in outcomes
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(fields, indent=1))
    print(f"written: {path}")
