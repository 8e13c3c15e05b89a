from __future__ import annotations

import traceback

import pytest

from windrow.core.errors import SourceError
from windrow.io.credentials import find_secrets, redact, without_user
from windrow.io.listing import list_files


def test_secrets_are_found_by_the_names_of_options() -> None:
    options = {
        "key": "k1",
        "anon": False,
        "client_kwargs": {"aws_session_token": "k2", "endpoint_url": "http://host", "region_name": "here"},
        "credentials": {"deep": {"er": "k3"}},
        "password": "",
    }
    assert sorted(find_secrets(options)) == ["k1", "k2", "k3"]
    assert find_secrets(None) == ()


def test_texts_are_redacted() -> None:
    assert redact("no ab nor abc at s3://me:pw@host/x", ["ab", "abc"]) == "no *** nor *** at s3://host/x"
    assert without_user("s3://bucket/a@b") == "s3://bucket/a@b"


def test_a_password_in_a_url_is_not_shown() -> None:
    with pytest.raises(SourceError, match=r"nosuch://host/x") as caught:
        list_files("nosuch://me:hunter2@host/x", storage_options={"token": "nosuch"})
    assert "hunter2" not in "".join(traceback.format_exception_only(caught.value))
