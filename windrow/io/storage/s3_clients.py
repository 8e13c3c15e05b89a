"""The two clients for S3, s3fs and pyarrow's: which one the options of a user mean, and what they are called there."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any
from urllib.parse import unquote

import pyarrow.fs as pa_fs

from windrow.core.errors import PlanError

_URL = re.compile(r"(?P<scheme>s3a?://)(?:(?P<key>[^/@:]*):(?P<secret>[^/@]*)@)?(?P<path>.*)", re.DOTALL)
# names that only pyarrow uses
_ARROW_NAMES = {
    "access_key", "secret_key", "session_token", "anonymous", "endpoint_override", "scheme", "role_arn",
    "session_name", "external_id", "load_frequency", "request_timeout", "connect_timeout",
    "background_writes", "default_metadata", "proxy_options", "allow_bucket_creation",
    "allow_bucket_deletion", "allow_delayed_open", "check_directory_existence_before_creation",
    "retry_strategy", "force_virtual_addressing", "tls_ca_file_path",
}  # fmt: skip
_SHARED_NAMES = {"endpoint_url", "region"}
_ARROW_NAME_OF = {"key": "access_key", "secret": "secret_key", "token": "session_token", "anon": "anonymous"}
S3_SCHEMES = ("s3", "s3a")
# aiobotocore's default is 10 connections; blocks are read with more concurrent requests
_CONNECTIONS = 64


def is_s3(url: str) -> bool:
    """Whether a URL is an S3 URL."""
    return url.startswith(tuple(f"{scheme}://" for scheme in S3_SCHEMES))


def extract_url_keys(urls: Sequence[str], options: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Move the key and secret in URLs to the options; a `PlanError` if URLs contain different ones.

    >>> extract_url_keys(["s3://me:pass%2Fword@bucket/x"], {"region": "eu-west-1"})
    (['s3://bucket/x'], {'key': 'me', 'secret': 'pass/word', 'region': 'eu-west-1'})
    """
    matches = [_URL.fullmatch(url) for url in urls]
    found = {(match["key"], match["secret"]) for match in matches if match and match["key"]}
    if len(found) > 1:
        raise PlanError("paths contain different keys for S3: read them separately")
    plain = [
        match["scheme"] + match["path"] if match else url for match, url in zip(matches, urls, strict=True)
    ]
    names = ("access_key", "secret_key") if uses_arrow_client(options) else ("key", "secret")
    given = {name: unquote(text) for pair in found for name, text in zip(names, pair, strict=True)}
    return plain, {**given, **options}


def uses_arrow_client(options: Mapping[str, Any]) -> bool:
    """Whether to use pyarrow's client: the options have its names, or s3fs is not installed."""
    arrow = sorted(_ARROW_NAMES & options.keys())
    others = sorted(options.keys() - _ARROW_NAMES - _SHARED_NAMES)
    if arrow and others:
        raise PlanError(
            f"storage_options= names {', '.join(arrow)} as pyarrow's S3FileSystem does, and {', '.join(others)} as "
            "s3fs does: give all of them as one of the two"
        )
    return bool(arrow) or find_spec("s3fs") is None


def to_s3fs_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Translate options for s3fs: pass the region to its client, and raise the connection limit.

    >>> to_s3fs_options({"anon": True, "region": "eu-west-1"})["client_kwargs"]
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
    """Create the S3 client of ``pyarrow.fs``; a `PlanError` if pyarrow does not support an option."""
    named = {_ARROW_NAME_OF.get(name, name): value for name, value in options.items() if value is not None}
    client = dict(named.pop("client_kwargs", None) or {})
    # s3fs's names, as far as pyarrow has an equivalent
    named.setdefault("region", client.pop("region_name", None))
    endpoint = named.pop("endpoint_url", None) or client.pop("endpoint_url", None)
    if endpoint is not None:
        scheme, _, host = str(endpoint).rpartition("://")
        named = {"endpoint_override": host.rstrip("/"), "scheme": scheme or "https", **named}
    unknown = sorted({*(named.keys() - _ARROW_NAMES - _SHARED_NAMES), *client})
    if unknown:
        raise PlanError(
            f"storage_options= names {', '.join(unknown)}, which pyarrow's S3FileSystem does not support: use "
            f'its options, or pip install "windrow[s3]" for s3fs'
        )
    return pa_fs.S3FileSystem(**{name: value for name, value in named.items() if value is not None})
