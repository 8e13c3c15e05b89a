"""Which S3 client the options of users choose, and what s3fs is given of them."""

from __future__ import annotations

from typing import Any

import pytest

from windrow.io.storage import s3_clients
from windrow.io.storage.s3_clients import to_s3fs_options, uses_arrow_client


def test_a_session_of_the_user_keeps_its_own_settings() -> None:
    session = object()
    assert to_s3fs_options({"session": session}) == {"session": session}


def test_a_client_gets_more_connections_unless_the_user_says_how_many() -> None:
    (settings,) = to_s3fs_options({}).values()
    assert settings["max_pool_connections"] > 10
    options = to_s3fs_options({"config_kwargs": {"max_pool_connections": 3}})
    assert options == {"config_kwargs": {"max_pool_connections": 3}}


@pytest.mark.parametrize(
    ("options", "expected"),
    [({"access_key": "k"}, True), ({"key": "k"}, False), ({"anon": True}, False), ({}, False)],
)
def test_names_of_options_choose_the_client(options: dict[str, Any], expected: bool) -> None:
    pytest.importorskip("s3fs")
    assert uses_arrow_client(options) == expected


def test_s3_is_read_by_pyarrow_where_s3fs_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_clients, "find_spec", lambda name: None)
    assert uses_arrow_client({})
