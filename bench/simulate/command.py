"""``python -m bench simulate``: many seeds, or one seed with its trace."""

from __future__ import annotations

import argparse
import time
from collections.abc import Generator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from multiprocessing import get_context

from bench.simulate.run import Outcome, simulate
from bench.system.console import ProgressLine, align_table, read_count
from bench.system.machine import count_cores

_SEEDS_AT_ONCE = 50


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=read_count, default=2_000, help="number of seeds")
    parser.add_argument("--start", type=int, default=0, help="first seed")
    parser.add_argument("--processes", type=int, help="worker processes (default: one per core)")
    parser.add_argument("--seed", type=int, help="run only this seed")
    parser.add_argument("--trace", action="store_true", help="with --seed: print every event")


def run(options: argparse.Namespace) -> int:
    """Run the seeds; the exit status is 0 if no guarantee was violated."""
    if options.seed is not None:
        return _run_one(options.seed, trace=options.trace)
    if options.trace:
        raise ValueError("--trace prints the events of one run: add --seed")
    seeds = range(options.start, options.start + options.seeds)
    processes = options.processes or count_cores()
    line, began = ProgressLine(), time.monotonic()
    line.start(f"{len(seeds):,} seeds")
    total, failed = Outcome(seeds.start), list[int]()
    with closing(_run_all(seeds, processes)) as outcomes:
        for done, outcome in enumerate(outcomes, 1):
            total.events += outcome.events
            total.runs += outcome.runs
            total.seconds += outcome.seconds
            total.faults += outcome.faults
            if outcome.failure:
                failed.append(outcome.seed)
                # printed immediately, because the remaining seeds may take long
                lines = outcome.failure.strip().splitlines()
                reason = lines[-1 if outcome.failure.startswith("Traceback") else 0]
                print(f"seed {outcome.seed}: {reason}", flush=True)
            line.update(done / len(seeds), f"{len(failed)} failed")
    seconds = time.monotonic() - began
    line.finish(f"in {seconds:.0f} s, {1e3 * seconds / len(seeds):.1f} ms each")
    print(draw_total(total, len(seeds), len(failed)))
    if failed:
        print(f"\nTo reproduce: python -m bench simulate --seed {failed[0]} --trace")
    return int(bool(failed))


def draw_total(total: Outcome, seeds: int, failed: int) -> str:
    rows = [
        ("seeds", seeds),
        ("failed", failed),
        ("runs", total.runs),
        ("simulated seconds", round(total.seconds)),
        ("events", total.events),
        *sorted(total.faults.items()),
    ]
    return align_table(("what", "times"), [(what, f"{times:,}") for what, times in rows], ("what",))


def _run_one(seed: int, *, trace: bool) -> int:
    outcome = simulate(seed, keep_trace=trace)
    for line in outcome.trace or ():
        print(line)
    print(draw_total(outcome, 1, int(bool(outcome.failure))))
    print(f"digest {outcome.digest}")
    if outcome.failure:
        print(f"\nseed {seed}: {outcome.failure}")
    return int(bool(outcome.failure))


def _run_all(seeds: range, processes: int) -> Generator[Outcome, None, None]:
    if processes == 1:
        yield from map(simulate, seeds)
        return
    # spawn: a forked child would inherit locks held by threads that do not exist in it
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        try:
            yield from pool.map(simulate, seeds, chunksize=_SEEDS_AT_ONCE)
        finally:
            pool.shutdown(cancel_futures=True)
