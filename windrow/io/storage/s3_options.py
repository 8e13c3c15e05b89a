"""What users say about S3, in the words of s3fs or of ``pyarrow.fs``, for either client."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any
from urllib.parse import unquote

import pyarrow.fs as pa_fs

from windrow.core.errors import PlanError

__all__ = ["find_user", "is_s3", "name_s3fs_options", "open_arrow_s3", "wants_arrow"]

_URL = re.compile(r"(?P<scheme>s3a?://)(?:(?P<key>[^/@:]*):(?P<secret>[^/@]*)@)?(?P<path>.*)", re.DOTALL)
# what only pyarrow calls so
_ARROW_NAMES = {
    "access_key", "secret_key", "session_token", "anonymous", "endpoint_override", "scheme", "role_arn",
    "session_name", "external_id", "load_frequency", "request_timeout", "connect_timeout",
    "background_writes", "default_metadata", "proxy_options", "allow_bucket_creation",
    "allow_bucket_deletion", "allow_delayed_open", "check_directory_existence_before_creation",
    "retry_strategy", "force_virtual_addressing", "tls_ca_file_path",
}  # fmt: skip
_SHARED_NAMES = {"endpoint_url", "region"}
_ARROW_NAME_OF = {"key": "access_key", "secret": "secret_key", "token": "session_token", "anon": "anonymous"}
# aiobotocore keeps 10 connections at once; blocks are read with more requests
_CONNECTIONS = 64


def is_s3(url: str) -> bool:
    """Whether a URL is one of S3."""
    return url.startswith(("s3://", "s3a://"))


def find_user(urls: Sequence[str], options: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """URLs without the key and secret that they carry, and the options with them.

    Examples
    --------
    >>> find_user(["s3://me:pass%2Fword@bucket/x"], {"region": "eu-west-1"})
    (['s3://bucket/x'], {'key': 'me', 'secret': 'pass/word', 'region': 'eu-west-1'})

    Raises
    ------
    PlanError
        If URLs carry different ones.
    """
    matches = [_URL.fullmatch(url) for url in urls]
    found = {(match["key"], match["secret"]) for match in matches if match and match["key"]}
    if len(found) > 1:
        raise PlanError("paths carry different keys for S3: read them separately")
    plain = [
        match["scheme"] + match["path"] if match else url for match, url in zip(matches, urls, strict=True)
    ]
    names = ("access_key", "secret_key") if wants_arrow(options) else ("key", "secret")
    given = {name: unquote(text) for pair in found for name, text in zip(names, pair, strict=True)}
    return plain, {**given, **options}


def wants_arrow(options: Mapping[str, Any]) -> bool:
    """Whether options are for pyarrow's client: named as it names them, or there is no other.

    Raises
    ------
    PlanError
        If some are named as pyarrow does, and others as s3fs does.
    """
    arrow = sorted(_ARROW_NAMES & options.keys())
    others = sorted(options.keys() - _ARROW_NAMES - _SHARED_NAMES)
    if arrow and others:
        raise PlanError(
            f"storage_options= names {', '.join(arrow)} as pyarrow's S3FileSystem does, and {', '.join(others)} as "
            "s3fs does: give all of them as one of the two"
        )
    return bool(arrow) or find_spec("s3fs") is None


def name_s3fs_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The same for s3fs: its client takes the region, and as many connections as blocks need.

    Examples
    --------
    >>> name_s3fs_options({"anon": True, "region": "eu-west-1"})["client_kwargs"]
    {'region_name': 'eu-west-1'}
    """
    named = {name: value for name, value in options.items() if name != "region"}
    if "region" in options:
        named["client_kwargs"] = {"region_name": options["region"], **(named.get("client_kwargs") or {})}
    if "session" not in named:
        config = named.get("config_kwargs") or {}
        named["config_kwargs"] = {"max_pool_connections": _CONNECTIONS, **config}
    return named


def open_arrow_s3(options: Mapping[str, Any]) -> Any:
    """The client of ``pyarrow.fs``.

    Raises
    ------
    PlanError
        If an option is none of pyarrow's.
    """
    named = {_ARROW_NAME_OF.get(name, name): value for name, value in options.items() if value is not None}
    client = dict(named.pop("client_kwargs", None) or {})
    # what s3fs would take, as far as there is a word for it here
    named.setdefault("region", client.pop("region_name", None))
    endpoint = named.pop("endpoint_url", None) or client.pop("endpoint_url", None)
    if endpoint is not None:
        scheme, _, host = str(endpoint).rpartition("://")
        named = {"endpoint_override": host.rstrip("/"), "scheme": scheme or "https", **named}
    unknown = sorted({*(named.keys() - _ARROW_NAMES - _SHARED_NAMES), *client})
    if unknown:
        raise PlanError(
            f"storage_options= names {', '.join(unknown)}, which pyarrow's S3FileSystem does not know: give it "
            f'what that does, or pip install "windrow[s3]" for s3fs'
        )
    return pa_fs.S3FileSystem(**{name: value for name, value in named.items() if value is not None})
