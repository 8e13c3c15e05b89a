from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import windrow
from windrow.core.errors import PlanError, SourceError
from windrow.io.catalog.listing import list_files
from windrow.io.storage.credentials import find_secrets, redact, source_error, url_secrets, without_user


def test_secrets_are_found_by_option_name() -> None:
    options = {
        "key": "k1",
        "anon": False,
        "client_kwargs": {"aws_session_token": "k2", "endpoint_url": "http://host", "region_name": "here"},
        "credentials": {"deep": {"er": "k3"}},
        "password": "",
        "headers": {"Cookie": "k4", "Accept": "text/html"},
        "pwd": "k5",
    }
    assert sorted(find_secrets(options)) == ["k1", "k2", "k3", "k4", "k5"]
    assert find_secrets(None) == ()


def test_texts_are_redacted() -> None:
    assert redact("no ab nor abc at s3://me:pw@host/x", ["ab", "abc"]) == "no *** nor *** at s3://host/x"
    assert without_user("s3://bucket/a@b") == "s3://bucket/a@b"


def test_a_password_in_a_url_is_not_shown() -> None:
    with pytest.raises(SourceError, match=r"nosuch://host/x") as caught:
        list_files("nosuch://me:hunter2@host/x", storage_options={"token": "nosuch"})
    assert "hunter2" not in "".join(traceback.format_exception_only(caught.value))


@pytest.mark.parametrize(
    ("text", "secrets", "shown"),
    [
        ("a parquet file at s3://bucket/data", ["a"], "*** parquet file at s3://bucket/data"),
        ("no such bucket: data/x.parquet", ["x", "s", "u"], "no such bucket: data/x.parquet"),
        ("key 'ab' and \"ab\", key=ab; (ab) ab.", ["ab"], "key '***' and \"***\", key=***; (***) ***."),
        ("cab abc ab1 ab_ a-ab/x", ["ab"], "cab abc ab1 ab_ a-ab/x"),
        ("s3://bucket/x: no /", ["/"], "s3://bucket/x: no ***"),
        ("abcdef", ["bcde"], "a***f"),
    ],
)
def test_short_secrets_are_replaced_as_whole_tokens_only(text: str, secrets: list[str], shown: str) -> None:
    assert redact(text, secrets) == shown


def test_short_keys_leave_the_error_message_readable() -> None:
    with pytest.raises(SourceError, match=r"nosuch://host/x: Protocol not known: nosuch; check the URL"):
        windrow.read_parquet("nosuch://host/x", storage_options={"key": "o", "secret": "e", "token": "/"})


BAD_OPTIONS: list[Any] = [
    [("hidden-key", "hidden-secret")],
    ("hidden-key", "hidden-secret"),
    "hidden-key:hidden-secret",
    {b"hidden-key": "hidden-secret"},
    {3: "hidden-secret"},
    7,
]


@pytest.mark.parametrize("options", BAD_OPTIONS, ids=lambda options: type(options).__name__)
def test_options_that_are_not_a_mapping_raise_without_being_shown(tmp_path: Path, options: Any) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: windrow.read_parquet("s3://bucket/x", storage_options=options),
        lambda: windrow.read_csv(str(tmp_path), storage_options=options),
        lambda: windrow.range(3).write_parquet(tmp_path / "out", storage_options=options),
    ]
    for call in calls:
        with pytest.raises(
            PlanError, match=r"storage_options= is a .*: give a dict of options by name"
        ) as told:
            call()
        assert "hidden" not in "".join(traceback.format_exception(told.value, chain=True))


def test_parts_of_connection_strings_and_shared_signatures_are_secrets() -> None:
    text = (
        "AccountName=me;AccountKey=a+b/c==;SharedAccessSignature=sv=2024&sig=d%2Be;BlobEndpoint=https://host"
    )
    found = find_secrets({"connection_string": text, "sas_token": "sv=2024&sig=f%2Fg"})
    assert {text, "a+b/c==", "d%2Be", "d+e", "f%2Fg", "f/g"} <= set(found)
    message = redact("key a+b/c== at https://host/x?sv=2024&sig=d%2Be, or f/g", found)
    assert not any(secret in message for secret in ("a+b/c==", "d%2Be", "f/g"))


def test_containers_in_urls_of_azure_are_no_credentials() -> None:
    url = "abfss://container@account.dfs.core.windows.net/train"
    assert without_user(url) == url
    assert url_secrets(url) == ()
    assert url_secrets("sftp://me:pw@host/train") == ("me:pw", "me", "pw")


def test_long_texts_of_libraries_are_cut() -> None:
    error = source_error("hdfs://host/x", OSError("cannot load " * 10_000), "check the path", ())
    assert str(error).startswith("hdfs://host/x: cannot load cannot load")
    assert str(error).endswith("...; check the path")
    assert len(str(error)) < 3_000
