from __future__ import annotations

from pathlib import Path

import pytest

from bench.system.ray_cluster import read_spilled


@pytest.mark.parametrize(
    ("lines", "spilled"),
    [
        ("[state-dump] - num bytes currently spilled: 0\n", 0),
        ("x :info_message:Spilled 104 MiB, 11 objects, write\ny Spilled 300 MiB, 30 objects\n", 300 * 2**20),
        ("x :info_message:Spilled 0 MiB, 1 objects, write throughput 0 MiB/s.\n", 1),
    ],
)
def test_spilled_bytes_are_read_from_the_raylet_log(tmp_path: Path, lines: str, spilled: int) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "raylet.out").write_text(lines)
    assert read_spilled(tmp_path) == spilled


def test_spill_worker_counts_before_the_log_does(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    assert read_spilled(tmp_path) == 0
    (tmp_path / "logs" / "python-core-spill_worker-1_2.log").touch()
    assert read_spilled(tmp_path) == 1
