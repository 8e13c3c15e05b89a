"""Credentials for S3 never appear in any text, with or without errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import windrow
from tests.faults.proxy import Fault, Proxy
from tests.io.files import S3
from tests.io.s3.chatty import STEPS, ChattyFileSystem
from tests.io.s3.conftest import BUCKET, STYLES, options_of
from tests.io.secret_texts import Texts, chain, listening

pytest.importorskip("s3fs")

ONCE = {"retries": {"total_max_attempts": 1}, "read_timeout": 1, "connect_timeout": 1}


def untouched(s3: S3, proxy: Proxy) -> None:
    """Inject no fault."""


def gone(s3: S3, proxy: Proxy) -> None:
    proxy.set(Fault("no such key", times=float("inf"), methods=("GET",), path="2.parquet"))


def denied(s3: S3, proxy: Proxy) -> None:
    proxy.set(Fault("denied", times=float("inf"), path="1.parquet"))


def throttled(s3: S3, proxy: Proxy) -> None:
    proxy.set(Fault("slow down", times=float("inf"), methods=("GET",), path="1.parquet"))


def broken(s3: S3, proxy: Proxy) -> None:
    proxy.set(Fault("reset", times=float("inf"), path=".parquet"))


def unlisted(s3: S3, proxy: Proxy) -> None:
    proxy.set(Fault("internal", times=float("inf"), path="list-type"))


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    "wrong", [untouched, gone, denied, throttled, broken, unlisted], ids=lambda f: f.__name__
)
def test_no_text_contains_a_secret(
    s3: S3,
    proxy: Proxy,
    data: str,
    style: str,
    wrong: Callable[[S3, Proxy], None],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    import pyarrow.fs as pa_fs

    options = options_of(style, proxy.endpoint)
    if style == "arrow":
        options["retry_strategy"] = pa_fs.AwsStandardS3RetryStrategy(max_attempts=1)
    else:
        options["config_kwargs"] = ONCE
    texts = Texts()
    proxy.set(None)
    try:
        wrong(s3, proxy)
        with listening(caplog, texts):
            chain(data, options, texts, tmp_path)
    finally:
        proxy.set(None)
    texts.said += capfd.readouterr()
    assert texts.said
    texts.search(s3.key, s3.secret)
    assert (wrong is untouched) == (not any("SourceError" in text for text in texts.said))


# characters that need quoting in URLs, Python, JSON or headers
ODD = st.text("abcXYZ019/+=%&?#@:'\"\\ \n~", min_size=6, max_size=20).map(lambda text: f"hid{text}den")


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(secrets=st.tuples(ODD, ODD, ODD, ODD), fails=st.sampled_from(STEPS), given_by=st.sampled_from("uf"))
def test_errors_of_object_storage_never_show_secrets(
    secrets: tuple[str, str, str, str],
    fails: str,
    given_by: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fsspec.register_implementation("chatty", ChattyFileSystem, clobber=True)
    key, secret, token, password = secrets
    options: dict[str, Any] = {
        "key": key,
        "client_kwargs": {"aws_secret_access_key": secret, "verify": "no"},
        "credentials": {"deep": [{"er": token}]},
        "proxies": [f"http://me:{quote(password, safe='')}@host"],
    }
    content = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": range(100)}), content, row_group_size=10)
    ChattyFileSystem().pipe_file("/chatty/x.parquet", content.getvalue().to_pybytes())
    texts = Texts()
    with listening(caplog, texts):
        made: dict[str, Any] = {"storage_options": {**options, "fails": fails}}
        if given_by == "f":
            filesystem = ChattyFileSystem(fails="", **options)
            filesystem.fails = fails if fails != "connect" else "look"
            made = {"filesystem": filesystem}
        ds = windrow.read_parquet("chatty://chatty", retry_seconds=0, **made)
        texts.add(ds, ds._plan.source, ds.take(1))
    assert any("SourceError" in text for text in texts.said)
    texts.search(key, secret, token, password)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(style=st.sampled_from(STYLES), secrets=st.tuples(ODD, ODD, ODD, ODD), where=st.integers(0, 4))
def test_secrets_with_special_characters_are_redacted(
    s3: S3,
    data: str,
    style: str,
    secrets: tuple[str, str, str, str],
    where: int,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    key, secret, token, password = secrets
    options, path = options_of(style, s3.endpoint, key, secret), data
    options["session_token" if style == "arrow" else "token"] = token
    address = f"http://user-{quote(key, safe='')}:{quote(password, safe='')}@127.0.0.1:9"
    if style == "s3fs":
        options["config_kwargs"] = ONCE
        nested: dict[str, Any] = {"client_kwargs": {"aws_session_token": password, "nonsense": [password]}}
        nested["client_kwargs"]["config"] = {"credentials": {"deep": [{"er": token}]}}
        options |= [{}, nested, {"config_kwargs": {**ONCE, "proxies": {"http": address}}}, {}, {}][where]
    elif where == 2:
        options["proxy_options"] = address
    if where == 3:
        options["endpoint_override" if style == "arrow" else "endpoint_url"] = address
    if where == 4:
        path = data.replace("s3://", f"s3://{quote(key, safe='')}:{quote(password, safe='')}@")
    texts = Texts()
    with listening(caplog, texts):
        ds = windrow.read_parquet(path, storage_options=options, retry_seconds=0)
        texts.add(ds, ds.take(1))
    assert any("SourceError" in text or "PlanError" in text for text in texts.said)
    texts.search(key, secret, token, password)


@pytest.mark.parametrize("style", STYLES)
def test_secrets_of_user_filesystems_are_redacted(
    s3: S3, proxy: Proxy, data: str, style: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import s3fs

    from windrow.io.storage.filesystems import connect

    proxy.set(None)
    filesystem = connect(data, None, options_of("arrow", proxy.endpoint, "odd-key", "odd-secret")).opener
    if style == "s3fs":
        filesystem = s3fs.S3FileSystem(False, proxy.endpoint, "odd-key", "odd-secret", "odd-token")
    texts = Texts()
    with listening(caplog, texts):
        ds = windrow.read_parquet(f"{BUCKET}/train", filesystem=filesystem, retry_seconds=0)
        texts.add(ds)
    assert any("SourceError" in text for text in texts.said)
    texts.search("odd-key", "odd-secret", "odd-token")


def test_errors_of_ray_workers_contain_no_secret(
    ray_local: Any, s3: S3, proxy: Proxy, data: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    proxy.set(None)
    texts = Texts()
    options = {**options_of("s3fs", proxy.endpoint), "config_kwargs": ONCE}
    try:
        with listening(caplog, texts):
            ds = windrow.read_parquet(data, storage_options=options, target_block_bytes=1, retry_seconds=0.1)
            denied(s3, proxy)
            pipe = ds.repeat(2).random_shuffle_each_window(seed=1).options(executor="ray")
            texts.add(pipe.explain())
            list(pipe.iter_batches(10_000))
    finally:
        proxy.set(None)
    assert any("1.parquet" in text and "SourceError" in text for text in texts.said)
    texts.search(s3.key, s3.secret)
