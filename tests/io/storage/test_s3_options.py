"""What s3fs is given of the options of users."""

from __future__ import annotations

from windrow.io.storage.s3_clients import to_s3fs_options


def test_a_session_of_the_user_keeps_its_own_settings() -> None:
    session = object()
    assert to_s3fs_options({"session": session}) == {"session": session}


def test_a_client_gets_more_connections_unless_the_user_says_how_many() -> None:
    (settings,) = to_s3fs_options({}).values()
    assert settings["max_pool_connections"] > 10
    options = to_s3fs_options({"config_kwargs": {"max_pool_connections": 3}})
    assert options == {"config_kwargs": {"max_pool_connections": 3}}
