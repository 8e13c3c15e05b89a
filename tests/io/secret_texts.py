"""Collects all texts that a run shows or keeps, and searches them for secrets."""

from __future__ import annotations

import json
import logging
import pickle
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

import windrow
from windrow.pipeline.coordinator.failures import Failure

__all__ = ["Texts", "chain", "listening"]

# debug logs of the clients contain the headers that they send
QUIET = (
    "botocore",
    "aiobotocore",
    "s3fs",
    "fsspec",
    "asyncio",
    "azure",
    "gcsfs",
    "google",
    "paramiko",
    "urllib3",
)


class Texts:
    """Collects texts, and searches them for secrets."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def add(self, *values: Any) -> None:
        for value in values:
            self.said += [repr(value), str(value)]

    def add_error(self, error: BaseException) -> None:
        self.said.append("".join(traceback.format_exception(error)))
        link: BaseException | None = error
        while link is not None:
            self.add(link, link.args)
            link = link.__cause__
        failure = Failure.capture(error)
        self.add(failure, failure.message, failure.original_text, failure.traceback_text, failure.original)
        self.add(pickle.loads(pickle.dumps(failure)))

    def search(self, *secrets: str) -> None:
        for secret in secrets:
            forms = {
                secret,
                quote(secret, safe=""),
                quote_plus(secret),
                repr(secret)[1:-1],
                json.dumps(secret)[1:-1],
            }
            found = [text for text in self.said if any(form in text for form in forms)]
            assert not found, f"{secret!r} is in {found[0][:2000]}"


@contextmanager
def listening(caplog: pytest.LogCaptureFixture, texts: Texts) -> Iterator[None]:
    """Collect warnings, log records of every level, and the error that ends the block."""
    caplog.clear()
    with warnings.catch_warnings(record=True) as warned, caplog.at_level(logging.DEBUG):
        warnings.simplefilter("always")
        try:
            yield
        except windrow.WindrowError as error:
            texts.add_error(error)
    texts.add(*(entry.message for entry in warned))
    records = [r for r in caplog.records if not (r.name.startswith(QUIET) and r.levelno < logging.INFO)]
    texts.said += [record.getMessage() + str(record.exc_text) for record in records]


def chain(
    data: str,
    options: dict[str, Any],
    texts: Texts,
    place: Path,
    executor: Any = "threads",
    before_reading: Callable[[], None] = lambda: None,
) -> None:
    """Read a whole pipeline, and collect the texts of all its objects."""
    ds = windrow.read_parquet(data, storage_options=options, target_block_bytes=1, retry_seconds=0.3)
    pipe = ds.window(blocks_per_window=3).repeat(2).random_shuffle_each_window(seed=1)
    pipe = pipe.options(executor=executor, cache="disk", cache_dir=place, progress=True)
    source: Any = ds._plan.source
    texts.add(ds, pipe, source, source.files, source.reader, source.addresses([0]), source.manifest)
    texts.add(pipe.explain(), ds.schema(), pickle.loads(pickle.dumps(ds)), source.identity(), source.contents)
    ds.save_manifest(place / "manifest")
    texts.said.append((place / "manifest").read_bytes().decode(errors="replace"))
    before_reading()
    with pipe.iterator() as shard:
        texts.add(shard)
        try:
            for epoch in shard.iter_epochs():
                texts.add(epoch)
                for _ in epoch.iter_batches(20_000):
                    texts.add(json.dumps(shard.state_dict()), shard.stats())
        finally:
            texts.add(shard.stats(), shard, shard.timeline())
            shard.timeline().save(place / "timeline.json")
            texts.said.append((place / "timeline.json").read_text())
