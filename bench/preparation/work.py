"""The images and documents of ``preparation``, the functions that prepare them, and what takes the results."""

from __future__ import annotations

import io
import multiprocessing
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.data.files import make_once
from bench.data.shapes import make_sentences
from bench.system.machine import count_cores

_FILES, _GROUPS_OF_FILE = 8, 4
_PIXELS = 224
# about 22 KB as JPEG: a few colours that blend, and noise
_STORED_PIXELS, _COLOURS, _NOISE, _QUALITY = (320, 240), (12, 16), 11, 85
# about 1 KB on the mean
_MOST_WORDS = 300
_TOKENS, _VOCABULARY = 512, 8_192
# far apart, so that the sum over them costs nothing beside the preparation
_SAMPLED = 997


def _decode_image(data: bytes, folder: str) -> Any:
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        side = min(image.size)
        left, top = ((length - side) // 2 for length in image.size)
        box = (left, top, left + side, top + side)
        return np.array(image.convert("RGB").resize((_PIXELS, _PIXELS), box=box))


def _tokenize(text: str, folder: str) -> Any:
    # one at a time, since a batch would use all cores by itself
    return np.array(_load_tokenizer(folder).encode(text).ids, np.int32)


@cache
def _load_tokenizer(folder: str) -> Any:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{folder}/_tokenizer.json")
    tokenizer.enable_truncation(_TOKENS)
    tokenizer.enable_padding(length=_TOKENS)
    return tokenizer


PARTS: Mapping[str, Callable[[Any, str], Any]] = {"images": _decode_image, "text": _tokenize}


def prepare(batch: Mapping[str, Any], part: str, folder: str) -> dict[str, Any]:
    """The function that all systems apply to batches."""
    return {"values": np.stack([PARTS[part](data, folder) for data in batch["data"]])}


def make_files(part: str, rows: int, folder: Path) -> Path:
    """Write the rows, and for documents a tokenizer, unless that was done before; returns their folder."""

    def make(home: Path) -> None:
        home.mkdir()
        counts = [len(some) for some in np.array_split(np.arange(rows), _FILES)]
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(count_cores(), mp_context=spawn) as pool:
            list(pool.map(partial(_write_file, part, home), range(_FILES), counts))
        if part == "text":
            _train_tokenizer(home)

    return make_once((folder / f"{part}-{rows}-rows-v1").resolve(), make)


@cache
def load_rows(folder: str) -> list[Any]:
    rows: list[Any] = pq.read_table(folder, columns=["data"])["data"].to_pylist()
    return rows


def _write_file(part: str, home: Path, number: int, rows: int) -> None:
    rng = np.random.default_rng((7, number))
    drawn = (_draw_image(rng) for _ in range(rows))
    data = list(drawn) if part == "images" else make_sentences(rows, number, 0, _MOST_WORDS)
    group_rows = max(1, -(-rows // _GROUPS_OF_FILE))
    pq.write_table(pa.table({"data": data}), home / f"part-{number}.parquet", row_group_size=group_rows)


def _draw_image(rng: np.random.Generator) -> bytes:
    from PIL import Image

    colours = Image.fromarray(rng.integers(0, 256, (*_COLOURS, 3), dtype=np.uint8))
    pixels = np.asarray(colours.resize(_STORED_PIXELS, Image.Resampling.BICUBIC)).astype(np.int16)
    pixels += rng.integers(-_NOISE, _NOISE + 1, (*pixels.shape[:2], 1), dtype=np.int16)
    file = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=_QUALITY)
    return file.getvalue()


def _train_tokenizer(home: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    texts = pq.read_table(home / "part-0.parquet")["data"].to_pylist()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=_VOCABULARY, show_progress=False))
    tokenizer.save(str(home / "_tokenizer.json"))


@dataclass(frozen=True)
class Taken:
    """What a trainer got in an epoch: rows, the sum of some of their values, and the seconds that it waited."""

    rows: int
    total: int
    waited_seconds: float


def take(batches: Iterable[Any], step_seconds: float = 0.0) -> Taken:
    """Take all batches, each for as long as a step lasts, which needs no core."""
    rows, total, waited = 0, 0, 0.0
    iterator = iter(batches)
    while True:
        began = time.perf_counter()
        batch = next(iterator, None)
        waited += time.perf_counter() - began
        if batch is None:
            return Taken(rows, total, waited)
        values = batch["values"]
        rows += len(values)
        total += int(values.reshape(len(values), -1)[:, ::_SAMPLED].sum())
        time.sleep(step_seconds)
