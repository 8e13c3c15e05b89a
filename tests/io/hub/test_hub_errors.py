"""What can go wrong with the Hugging Face Hub: each error says what to do, and none shows a token."""

from __future__ import annotations

import dataclasses
import functools
import logging
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import pytest

import windrow
from tests.hub_server import TOKEN, Hub, HubFault
from tests.io.hub.conftest import DESCRIPTIONS, REPO, ROWS, URL, trips
from tests.io.hub.test_reading import read, rows_of

OTHER = "hf_anotherSECRETtoken"


def private(hub: Hub) -> None:
    hub.restrict(REPO, private=True)


def gated(hub: Hub) -> None:
    hub.restrict(REPO, accepted={TOKEN})


def public(hub: Hub) -> None:
    """Leave the repository to everybody."""


@pytest.mark.parametrize(
    ("access", "path", "token", "text"),
    [
        (public, "hf://datasets/me/nothing", OTHER, "no such dataset, or it is private: .*HF_TOKEN"),
        (public, "hf://me/trips", None, "no such model, or it is private: .*'hf://datasets/' begins"),
        (private, URL, None, "no such dataset, or it is private: .*HF_TOKEN"),
        (private, URL, OTHER, "no such dataset, or it is private: .*HF_TOKEN"),
        (gated, URL, None, "gated: accept its conditions .*HF_TOKEN"),
        (gated, f"{URL}/data/test.parquet", OTHER, "gated: accept its conditions .*HF_TOKEN"),
        (public, f"{URL}@v9", None, "no revision 'v9': give one of its branches, tags or commits"),
        (public, f"{URL}@~parquet", None, "no revision 'refs/convert/parquet': the Hub has not converted"),
        (public, URL, "badSECRETtoken", "the Hub refuses the token"),
        (public, f"{URL}/data/none.parquet", None, "matches nothing: no such file or directory"),
        (public, f"{URL}/data/none-*.parquet", None, "matches nothing: no file has such a name"),
        (public, "hf://datasets/me", None, "(?i)repository id must be"),
    ],
)
def test_errors_say_what_to_do(
    hub: Hub, access: Callable[[Hub], None], path: str, token: str | None, text: str
) -> None:
    hub.commit(REPO, trips())
    access(hub)
    with pytest.raises(windrow.SourceError, match=text) as caught:
        read(path, hub, token=token)
    said = "".join(traceback.format_exception(caught.value))
    assert token is None or token not in said
    assert len(hub.requests) < 7


@pytest.mark.parametrize(
    ("files", "text"),
    [
        (
            {"train.csv": b"x\n1\n", "more/test.jsonl.gz": b""},
            r"1 .jsonl, 1 .csv: use read_csv .*read_json .*"
            r"read_parquet\(\"hf://datasets/me/trips@refs/convert/parquet\"\), "
            r"or \"@~parquet\"",
        ),
        ({"run.py": b""}, r"1 .py: use the Parquet files that the Hub has made of them"),
        ({}, "a directory without data files"),
    ],
)
def test_a_repository_without_parquet_leads_to_the_converted_one(
    hub: Hub, files: dict[str, bytes], text: str
) -> None:
    hub.commit(REPO, {**DESCRIPTIONS, **files})
    with pytest.raises(windrow.SourceError, match=text):
        read(URL, hub)


FAULTS = [
    HubFault("/api/datasets/me/trips", 500, 2),
    HubFault("/api/datasets/me/trips", 429, 1),
    HubFault("/resolve/", 503, 3, "HEAD"),
    HubFault("/resolve/", 429, 2, "HEAD"),
    HubFault("/cdn/", 500, 3),
    HubFault("/cdn/", 503, 1),
    HubFault("/cdn/", 206, 3, cut=100),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f"{f.status} {f.method} {f.path}")
def test_transient_errors_are_retried(hub: Hub, fault: HubFault) -> None:
    hub.commit(REPO, trips())
    planned = HubFault(**vars(fault))
    hub.faults.append(planned)
    assert rows_of(read(f"{URL}/data/test.parquet", hub)) == list(range(2 * ROWS, 3 * ROWS))
    assert planned.times == 0


@pytest.mark.parametrize("headers", [{"Retry-After": "1"}, {"RateLimit": '"resolvers";r=0;t=1'}])
@pytest.mark.parametrize(("path", "method"), [("/cdn/", "GET"), ("/resolve/", "HEAD")])
def test_reads_wait_as_long_as_the_hub_says(
    hub: Hub, path: str, method: str, headers: dict[str, str]
) -> None:
    hub.commit(REPO, trips())
    planned = HubFault(path, 429, 1, method, headers=headers)
    hub.faults.append(planned)
    begin = time.monotonic()
    assert read(f"{URL}/data/test.parquet", hub).count() == ROWS
    assert time.monotonic() - begin >= 1
    assert planned.times == 0


def test_another_range_is_an_error(hub: Hub) -> None:
    hub.commit(REPO, trips())
    ds = read(f"{URL}/data/test.parquet", hub)
    hub.faults.append(HubFault("/cdn/", 206, float("inf"), headers={"Content-Range": "bytes 7-8/9"}))
    with pytest.raises(windrow.SourceError, match=r"another range than that from byte [0-9,]+: bytes 7-8/9"):
        ds.to_numpy()


def test_a_file_without_a_size_is_an_error(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    hub.commit(REPO, trips())
    ask = huggingface_hub.get_hf_file_metadata
    lacking = functools.partial(dataclasses.replace, size=None)
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda *a, **o: lacking(ask(*a, **o)))
    with pytest.raises(windrow.SourceError, match="does not state the size of the file"):
        read(f"{URL}/data/test.parquet", hub)


def test_a_listing_is_retried(hub: Hub) -> None:
    hub.commit(REPO, trips())
    hub.faults.append(HubFault("/tree/", 503, 1))
    assert read(URL, hub).count() == 3 * ROWS


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (HubFault("/cdn/", 503, float("inf")), "attempts? failed"),
        (HubFault("/cdn/", 206, float("inf"), cut=100), "attempts? failed"),
        (HubFault("/cdn/", 403, float("inf")), "no read permission"),
        (HubFault("/resolve/", 404, float("inf"), "HEAD"), "missing"),
        (HubFault("/api/datasets/me/trips", 503, float("inf")), "cannot be listed: .*attempts? failed"),
    ],
    ids=lambda value: value.path + str(value.status) if isinstance(value, HubFault) else "",
)
def test_lasting_errors_end_and_show_no_secret(
    hub: Hub, fault: HubFault, text: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    hub.commit(REPO, trips())
    hub.faults.append(HubFault(**vars(fault)))
    options: dict[str, Any] = {"storage_options": hub.options(token=TOKEN), "retry_seconds": 0.2}
    with (
        caplog.at_level(logging.INFO),
        pytest.raises(windrow.SourceError, match=f"(?s)trips.*{text}") as caught,
    ):
        windrow.read_parquet(f"{URL}/data/test.parquet", **options).take()
    # the client logs its requests, and so the URLs that the hub signs
    logged = [record.getMessage() for record in caplog.records if not record.name.startswith("httpx")]
    said = "\n".join([*traceback.format_exception(caught.value), *logged, *capfd.readouterr()])
    assert "SECRET" not in said
    assert len(hub.requests) < 60


def test_a_listing_ends_although_its_client_waits(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windrow.io.catalog.listing._HUB_SECONDS", 0.2)
    hub.commit(REPO, trips())
    hub.faults.append(HubFault("/tree/", 200, 1, delay=1.0))
    with pytest.raises(windrow.SourceError, match=r"(?s)cannot be listed.*no response within 0\.2 s"):
        windrow.read_parquet(f"{URL}/data/test.parquet", storage_options=hub.options(), retry_seconds=0)
    # the client gets its answer, of one page, in the end
    deadline = time.monotonic() + 20
    while "/tree/" not in hub.requests[-1].path:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_offline_mode_is_no_endless_wait(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    hub.commit(REPO, trips())
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(windrow.SourceError, match="offline mode: unset the variable HF_HUB_OFFLINE"):
        read(URL, hub)
    assert not hub.requests


def test_no_text_of_a_run_has_the_token(hub: Hub, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.commit(REPO, trips())
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    ds = read(URL, hub)
    pipe = ds.window(blocks_per_window=3).random_shuffle_each_window(seed=1).options(executor="threads")
    source: Any = ds._plan.source
    texts = [ds, pipe, source, source.files, source.files.filesystem, source.addresses([0]), pipe.explain()]
    ds.save_manifest(tmp_path / "manifest")
    with pipe.iterator() as shard:
        next(iter(shard.iter_batches(100)))
        texts += [shard, shard.state_dict(), shard.stats()]
    said = "".join(f"{text!r}{text}" for text in texts)
    assert TOKEN not in said + (tmp_path / "manifest").read_bytes().decode(errors="replace")


def test_without_the_library_the_error_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(
        windrow.PlanError, match=r'hf:// path needs huggingface_hub.*pip install "windrow\[hub\]"'
    ):
        windrow.read_parquet(URL)
