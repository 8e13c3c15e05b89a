"""windrow under torchrun: every rank calls ``shard()``."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.peers.windrow_pipeline import import_all
from bench.request import Request
from bench.run_details import RunDetails
from bench.trainer import Progress, TrainerResult

__all__ = ["WindrowTorchrun"]

_POLL_SECONDS = 0.5


class WindrowTorchrun:
    """One rank per trainer."""

    def __init__(self, request: Request, progress: Progress) -> None:
        self._request = request
        self._progress = progress

    def prepare(self) -> None:
        """Import what reading needs; the ranks do so by themselves."""
        import_all()

    def run(self) -> Sequence[TrainerResult]:
        """Start torchrun, wait for all ranks, and collect their results."""
        ranks = self._request.trainers
        with tempfile.TemporaryDirectory(prefix="windrow-bench-") as name:
            folder = Path(name)
            request = folder / "request"
            request.write_text(self._request.to_json())
            command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
            command += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
            command += ["-m", "bench.launched_rank", str(request), name]
            with subprocess.Popen(command) as torchrun:
                while torchrun.poll() is None:
                    time.sleep(_POLL_SECONDS)
                    self._report(folder)
            if torchrun.returncode:
                raise RuntimeError(f"torchrun ended with exit status {torchrun.returncode}")
            return [pickle.loads((folder / f"{rank}.result").read_bytes()) for rank in range(ranks)]

    def _report(self, folder: Path) -> None:
        seen = [tuple(map(int, path.read_text().split())) for path in folder.glob("*.seen")]
        if seen:
            lowest = min(epoch for epoch, _ in seen)
            self._progress(lowest, sum(rows for epoch, rows in seen if epoch == lowest))

    def details(self) -> RunDetails:
        """Nothing: the ranks measure."""
        return RunDetails()

    def close(self) -> None:
        """Nothing is left to close."""
