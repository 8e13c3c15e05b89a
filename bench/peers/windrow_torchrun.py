"""windrow under torchrun: every rank calls ``shard()``; this module is also what a rank runs.

A rank is started with the path of a request and of a folder for its results.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.peers.base import Peer, import_modules
from bench.peers.windrow_threads import IMPORTS, ShardEpochs, build_pipeline
from bench.training.request import Request
from bench.training.trainer import Trainer, TrainerResult


class WindrowTorchrun(Peer):
    def prepare(self) -> None:
        import_modules(*IMPORTS)

    def run(self) -> Sequence[TrainerResult]:
        ranks = self._request.trainers
        with tempfile.TemporaryDirectory(prefix="windrow-bench-") as name:
            folder = Path(name)
            request = folder / "request"
            request.write_bytes(pickle.dumps(self._request))
            launcher = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
            launcher += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
            rank = ["-m", "bench.peers.windrow_torchrun", str(request), name]
            subprocess.run([*launcher, *rank], check=True)
            return [pickle.loads((folder / f"{rank}.result").read_bytes()) for rank in range(ranks)]


def main() -> None:
    request: Request = pickle.loads(Path(sys.argv[1]).read_bytes())
    folder, rank = Path(sys.argv[2]), int(os.environ["RANK"])
    trainer = Trainer(request)
    import_modules(*IMPORTS)
    shard = build_pipeline(request, "auto").options(progress=False).shard(equal=request.equal)
    source = ShardEpochs(shard, request)
    result = trainer.train(source)
    source.close()
    (folder / f"{rank}.result").write_bytes(pickle.dumps(result))


if __name__ == "__main__":
    main()
