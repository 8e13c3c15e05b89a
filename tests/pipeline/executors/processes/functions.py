"""Transforms that worker processes load by name."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np


def augment(batch: dict[str, Any], rng: Any) -> dict[str, Any]:
    """Columns that depend on the rows and their positions alone."""
    return {
        "id": batch["id"],
        "noise": rng.normal(),
        "pixels": np.repeat(batch["id"].astype(np.uint8), 6).reshape(-1, 2, 3),
        "text": np.array([f"row {number}" for number in batch["id"]], dtype=object),
    }


class Counting:
    """Adds the process, and how many batches its object has got there."""

    def __init__(self, pause: float = 0.0) -> None:
        self.pause = pause
        self.calls = 0

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        self.calls += 1
        time.sleep(self.pause)
        rows = len(batch["id"])
        return {"id": batch["id"], "pid": np.full(rows, os.getpid()), "calls": np.full(rows, self.calls)}


class Dying:
    """Kills its process at a row: the first time, or each time."""

    def __init__(self, row: int, marker: Path, always: bool) -> None:
        self.row, self.marker, self.always = row, marker, always

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        if self.row in batch["id"] and (self.always or not self.marker.exists()):
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return {"id": batch["id"] * 2}


class Unmakable:
    """A class whose objects cannot be made."""

    def __init__(self) -> None:
        raise FileNotFoundError("weights.pt")

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        return batch


def fail_at_250(batch: dict[str, Any]) -> dict[str, Any]:
    if 250 in batch["id"]:
        raise ZeroDivisionError("at 250")
    return batch


def end_process(batch: dict[str, Any]) -> dict[str, Any]:
    raise SystemExit(3)


def sleep_long(batch: dict[str, Any]) -> dict[str, Any]:
    time.sleep(600)
    return batch


def invert_row(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"], "inverse": 1 / (row["id"] - 7)}


class Keeping:
    """Keeps the memory of all its batches, and tells whether it changes."""

    def __init__(self) -> None:
        self.kept: list[tuple[Any, Any]] = []

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        self.kept.append((batch["id"], batch["id"].copy()))
        same = all(np.array_equal(kept, copy) for kept, copy in self.kept)
        return {"id": batch["id"], "same": np.full(len(batch["id"]), same)}


def double_tokens(batch: dict[str, Any]) -> dict[str, Any]:
    return {"tokens": batch["tokens"] * 2}


def count_here(batch: dict[str, Any]) -> dict[str, Any]:
    return {"id": batch["id"], "pid": np.full(len(batch["id"]), os.getpid())}


def end_on_sigterm(batch: dict[str, Any]) -> dict[str, Any]:
    """Leaves behind a signal handler that ends the process as Python ends."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    return {"id": batch["id"] + 1}


def die_with_a_child(batch: dict[str, Any], pids: Path) -> dict[str, Any]:
    """Kills its process, of which a forked one keeps all files open."""
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
    with pids.open("a") as file:
        file.write(f"{child}\n")
    os.kill(os.getpid(), signal.SIGKILL)
    return batch
