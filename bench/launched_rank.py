"""One rank of the torchrun benchmark: reads its shard, and writes its results to a file.

Started by torchrun with the path of a request and of a folder for the results.
"""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

from bench.peers.windrow_pipeline import ShardEpochs, build_pipeline, import_all
from bench.request import Request
from bench.trainer import Trainer

__all__ = ["main"]


def main() -> None:
    """Take every batch of this rank's shard."""
    request = Request.from_json(Path(sys.argv[1]).read_text())
    folder, rank = Path(sys.argv[2]), int(os.environ["RANK"])
    seen = folder / f"{rank}.seen"

    def note(epoch: int, rows: int) -> None:
        temporary = seen.with_suffix(".tmp")
        temporary.write_text(f"{epoch} {rows}")
        temporary.replace(seen)

    trainer = Trainer(request, f"trainer {rank}", note)
    import_all()
    shard = build_pipeline(request, "auto").options(progress=False).shard(equal=request.equal)
    source = ShardEpochs(shard, request, includes_run_spans=rank == 0)
    result = trainer.train(source)
    result.spans.extend(source.spans())
    (folder / f"{rank}.result").write_bytes(pickle.dumps(result))


if __name__ == "__main__":
    main()
