"""Ready-made transforms as methods: their options go to map_batches, and missing libraries are named."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windrow
from tests.pipeline.tasks.media.images import encode, picture
from windrow.core.errors import PlanError

CALLS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "decode_images": ("PIL.Image", "images", {}),
    "decode_audio": ("av", "audio", {"sample_rate": 8_000}),
    "decode_video": ("av", "video", {"frames": 2}),
    "tokenize": ("tokenizers", "tokenizers", {"tokenizer": "name"}),
}


def dataset() -> windrow.Dataset:
    images = [encode(picture(row)) for row in range(12)]
    return windrow.from_arrow(pa.table({"image": images, "row": np.arange(12)}), target_block_bytes=3_000)


@pytest.mark.parametrize("call", CALLS)
def test_a_missing_library_is_named_with_its_extra(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, extra, options = CALLS[call]
    monkeypatch.setitem(sys.modules, module, None)
    ds = windrow.from_arrow(pa.table({"column": pa.array(["x"])}))
    with pytest.raises(
        PlanError, match=rf"needs {module}, which cannot be imported here.*windrow\[{extra}\]"
    ):
        getattr(ds, call)("column", **options)


def test_options_are_those_of_map_batches() -> None:
    resources: dict[str, Any] = {"num_cpus": 2, "memory": "1GiB", "resources": {"fast": 1}}
    pool = windrow.ActorPool(size=2)
    (made,) = dataset().decode_images("image", batch_size=5, compute=pool, **resources)._plan.maps
    (plain,) = dataset().map_batches(len, batch_size=5, compute=pool, **resources)._plan.maps
    for name in ("batch_size", "compute", "resources", "preserves_rows"):
        assert getattr(made, name) == getattr(plain, name)
    assert not made.rng
    (random,) = dataset().decode_images("image", size=8, flip=0.5)._plan.maps
    assert random.rng


def test_a_pool_decodes_the_same_rows() -> None:
    options: dict[str, Any] = {"size": 8, "crop": "random_resized", "flip": 0.5}
    expected = dataset().decode_images("image", **options).to_arrow()
    pooled = dataset().decode_images("image", batch_size=2, compute=windrow.ActorPool(size=2), **options)
    assert pooled.options(executor="threads").to_arrow().equals(expected)


@pytest.mark.parametrize("after", [False, True])
def test_worker_processes_make_the_same_rows(after: bool) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    letters = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 1, "b": 2, "?": 0}, unk_token="?"))
    letters.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    texts = pa.array([f"a b {row}" for row in range(12)])
    stored = windrow.from_arrow(dataset().to_arrow().append_column("text", texts), target_block_bytes=3_000)

    def rows(**options: Any) -> Any:
        made: Any = stored.options(executor="threads")
        shuffled = made.window().random_shuffle_each_window(seed=7) if after else made
        images = shuffled.decode_images("image", size=8, crop="random_resized", flip=0.5, **options)
        ready = images.tokenize("text", letters, max_length=4, padding="max_length", pad_id=9, **options)
        pipe = ready if after else ready.window().random_shuffle_each_window(seed=7)
        return [
            {name: values.tolist() for name, values in batch.items()}
            for batch in pipe.iter_batches(batch_size=5)
        ]

    assert rows(compute="processes") == rows()


def test_the_call_is_named_in_plans() -> None:
    plan = str(dataset().decode_images("image", size=8).window().explain())
    assert "decode_images('image')" in plan
