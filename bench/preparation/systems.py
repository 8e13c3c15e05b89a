"""The images and documents of ``preparation``, what prepares them, and the systems, each in a process of its own."""

from __future__ import annotations

import io
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import windrow
from bench.data.files import make_once
from bench.data.shapes import make_sentences
from bench.shapes.systems import make_trainers
from bench.system.machine import count_cores
from bench.system.processes import read_tree_cpu_seconds
from bench.system.ray_cluster import start_ray

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
        with ProcessPoolExecutor(count_cores(), mp_context=get_context("spawn")) as pool:
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


_BATCH_ROWS = 64
_WINDOW_BLOCKS = 8
# what `map_batches` gets for --compute; the tasks that read need a CPU too
COMPUTE: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "processes": {"compute": "processes"},
    "pool": {"compute": windrow.ActorPool(count_cores()), "num_cpus": 0},
}

Request = Mapping[str, Any]
# reads an epoch, with steps of some seconds, and returns what each trainer got
Read = Callable[[float], list[Taken]]


@contextmanager
def _read_bare(make_worker: Callable[[], Executor], request: Request) -> Iterator[Read]:
    """A worker a core, each with its share of the rows in memory."""
    with ExitStack() as stack:
        workers = [stack.enter_context(make_worker()) for _ in range(count_cores())]

        def read(step_seconds: float) -> list[Taken]:
            taken = [worker.submit(_take_share, request, share) for share, worker in enumerate(workers)]
            return [each.result() for each in taken]

        yield read


def _take_share(request: Request, share: int) -> Taken:
    rows, arguments = load_rows(request["folder"])[share :: count_cores()], _name_work(request)
    parts = (rows[at : at + _BATCH_ROWS] for at in range(0, len(rows), _BATCH_ROWS))
    return take(prepare({"data": part}, **arguments) for part in parts)


def _name_work(request: Request) -> dict[str, str]:
    return {"part": request["part"], "folder": request["folder"]}


class _Rows:
    def __init__(self, part: str, folder: str) -> None:
        self._prepare, self._folder, self._rows = PARTS[part], folder, load_rows(folder)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, at: int) -> dict[str, Any]:
        return {"values": self._prepare(self._rows[at], self._folder)}


@contextmanager
def _read_torch(request: Request) -> Iterator[Read]:
    from torch.utils.data import DataLoader

    rows: Any = _Rows(**_name_work(request))
    workers = count_cores()
    loader = DataLoader(rows, _BATCH_ROWS, shuffle=True, num_workers=workers, persistent_workers=True)
    yield lambda step_seconds: [take(loader, step_seconds)]


def _describe_function(request: Request) -> dict[str, Any]:
    """What `map_batches` gets, of windrow and of Ray Data."""
    return {"fn": prepare, "fn_kwargs": _name_work(request), "batch_size": _BATCH_ROWS}


@contextmanager
def _read_windrow(executor: str, request: Request) -> Iterator[Read]:
    dataset = windrow.read_parquet(request["folder"]).window(blocks_per_window=_WINDOW_BLOCKS)
    # the epoch after the last keeps prefetching as it was
    epochs = 2 + request["epochs"] * (1 + request["work"])
    function = {**_describe_function(request), **COMPUTE[request["compute"]]}
    is_before = request["place"] == "before"
    repeated = (dataset.map_batches(**function) if is_before else dataset).repeat(epochs)
    shuffled = repeated.random_shuffle_each_window(seed=7)
    pipe = shuffled if is_before else shuffled.map_batches(**function)
    trainers = make_trainers(executor, request["trainers"])
    pipe = pipe.options(executor=executor, progress=False)
    shards = pipe.split(request["trainers"], locality_hints=trainers.handles)
    try:
        yield lambda step_seconds: [
            taken for _, taken in trainers.read(shards, 1, partial(_take_epoch, step_seconds))
        ]
    finally:
        trainers.close(shards)


def _take_epoch(step_seconds: float, epoch: windrow.Epoch) -> Taken:
    return take(epoch.iter_torch_batches(batch_size=_BATCH_ROWS), step_seconds)


@contextmanager
def _read_ray_data(request: Request) -> Iterator[Read]:
    import ray.data

    ray.data.DataContext.get_current().enable_progress_bars = False
    dataset = ray.data.read_parquet(request["folder"], file_extensions=["parquet"])
    # before its shuffle, which holds all rows, the function would make them several times as large
    prepared = dataset.random_shuffle().map_batches(**_describe_function(request))
    yield lambda step_seconds: [take(prepared.iter_torch_batches(batch_size=_BATCH_ROWS), step_seconds)]


SYSTEMS: Mapping[str, Callable[[Request], AbstractContextManager[Read]]] = {
    "processes": partial(_read_bare, partial(ProcessPoolExecutor, 1, mp_context=get_context("spawn"))),
    "threads": partial(_read_bare, partial(ThreadPoolExecutor, 1)),
    "torch": _read_torch,
    "windrow-threads": partial(_read_windrow, "threads"),
    "windrow-ray": partial(_read_windrow, "ray"),
    "ray": _read_ray_data,
}


def measure(name: str, request: Request) -> dict[str, Any]:
    """The seconds of an epoch after the first, what it gave, and the share that trainers wait with slow steps."""
    with SYSTEMS[name](request) as read:
        read(0.0)
        before = read_tree_cpu_seconds()
        seconds, taken = _read_epochs(read, request["epochs"], 0.0)
        found = {
            "seconds": statistics.mean(seconds),
            "cpu_seconds": (read_tree_cpu_seconds() - before) / request["epochs"],
            "rows": sum(each.rows for each in taken) / request["epochs"],
            "total": sum(each.total for each in taken) / request["epochs"],
        }
        if request["work"] and name not in ("processes", "threads"):
            batches = -(-found["rows"] // (request["trainers"] * _BATCH_ROWS))
            # the slowest epoch, because the speed of a machine varies
            spent, taken = _read_epochs(read, request["epochs"], max(seconds) / batches)
            found["waited"] = sum(each.waited_seconds for each in taken) / request["trainers"] / sum(spent)
    return found


def _read_epochs(read: Read, epochs: int, step_seconds: float) -> tuple[list[float], list[Taken]]:
    seconds, taken = [], []
    for _ in range(epochs):
        began = time.perf_counter()
        taken += read(step_seconds)
        seconds.append(time.perf_counter() - began)
    return seconds, taken


def start(name: str, store_bytes: int) -> Callable[[Request], dict[str, Any]]:
    if name.endswith("ray"):
        start_ray(store_bytes, count_cores())
    return partial(measure, name)
