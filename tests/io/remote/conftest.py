"""A folder in each kind of remote store; the emulators of clouds run at night."""

from __future__ import annotations

import base64
import datetime
import ipaddress
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.faults.proxy import Proxy, open_proxy
from tests.io.files import S3, make_bucket
from tests.io.remote.servers import serve_azure, serve_gcs, serve_plain_http, serve_rclone
from tests.io.remote.stores import (
    WRONG,
    RemoteStore,
    client_of,
    memory_store,
    over_sftp,
    put_in,
    remove_from,
    through,
)
from tests.io.remote.tcp_proxy import TcpProxy, open_tcp_proxy

ON_EVERY_CHANGE = ("memory", "https", "http without ranges", "sftp")
# tests/io/s3 and tests/faults read from S3 on every change
AT_NIGHT = ("s3", "azure", "gcs")
STORES = [*ON_EVERY_CHANGE, *(pytest.param(name, marks=pytest.mark.nightly) for name in AT_NIGHT)]

USER, PASSWORD, SIGNATURE = (
    "user-that-nobody-shows",
    "pass/word+that nobody=shows",
    "sig/nature+that=nobody-shows",
)
# the key that Azurite comes with
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
AZURE_ACCOUNT = "devstoreaccount1"
BUCKET = "remote"


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RemoteStore]:
    name = request.param.replace(" ", "_")
    folder = tmp_path.name.replace("_", "-")
    if name == "memory":
        yield from memory_store(folder)
        return
    made: RemoteStore = request.getfixturevalue(f"make_{name}")(folder)
    made.mend()
    yield made
    made.mend()


@pytest.fixture(scope="session")
def s3_proxy(memory_s3: str) -> Iterator[tuple[Proxy, str]]:
    """moto's server: rclone's, which most tests of S3 use, can hang while files are written and changed beside it."""
    pytest.importorskip("s3fs")
    make_bucket(memory_s3, BUCKET)
    with open_proxy(memory_s3) as proxy:
        yield proxy, memory_s3


@pytest.fixture
def make_s3(s3_proxy: tuple[Proxy, str]) -> Any:
    from s3fs import S3FileSystem

    proxy, endpoint = s3_proxy
    keys = {"key": S3.key, "secret": S3.secret}
    direct = S3FileSystem(**keys, endpoint_url=endpoint)

    def make(folder: str) -> RemoteStore:
        put, remove = through(direct, f"{BUCKET}/{folder}/")
        # faster than the client's own retries
        once = {"config_kwargs": {"retries": {"total_max_attempts": 1}}}
        options = {**keys, "endpoint_url": proxy.endpoint, **once}
        return RemoteStore("s3", f"s3://{BUCKET}/{folder}/", options, put, remove, proxy, (S3.key, S3.secret))

    return make


@pytest.fixture(scope="session")
def https_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Proxy, Path, Path]]:
    """rclone's web server behind TLS; it has pages, ranges, and a password."""
    pytest.importorskip("aiohttp")
    directory = tmp_path_factory.mktemp("https")
    certificate = make_certificate(tmp_path_factory.mktemp("certificate") / "server.pem")
    served = directory / "served"
    served.mkdir()
    # tests write without the server, and a listing that it keeps would lack their files
    options = ("--user", USER, "--pass", PASSWORD, "--dir-cache-time", "0s")
    with (
        serve_rclone("http", served, *options) as port,
        open_proxy(f"http://127.0.0.1:{port}", certificate) as proxy,
    ):
        yield proxy, served, certificate


@pytest.fixture
def make_https(https_server: tuple[Proxy, Path, Path]) -> Any:
    proxy, served, certificate = https_server

    def make(folder: str) -> RemoteStore:
        login = f"{USER}:{quote(PASSWORD, safe='')}@"
        root = proxy.endpoint.replace("://", f"://{login}") + f"/{folder}/"
        options = {"get_client": client_of(certificate)}
        put, remove = put_in(served / folder), remove_from(served / folder)
        header = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        secrets = (USER, PASSWORD, header)
        found = RemoteStore("https", root, options, put, remove, proxy, secrets, can_write=False)
        found.wrong = root.replace(quote(PASSWORD, safe=""), WRONG), options
        return found

    return make


@pytest.fixture(scope="session")
def plain_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Proxy, Path]]:
    """Python's web server, which sends files as a whole; the proxy asks for a signature in the URL."""
    pytest.importorskip("aiohttp")
    served = tmp_path_factory.mktemp("http") / "served"
    served.mkdir()
    with serve_plain_http(served) as port, open_proxy(f"http://127.0.0.1:{port}") as proxy:
        proxy.required = f"sig={quote(SIGNATURE, safe='/')}"
        yield proxy, served


@pytest.fixture
def make_http_without_ranges(plain_server: tuple[Proxy, Path]) -> Any:
    proxy, served = plain_server

    def make(folder: str) -> RemoteStore:
        root = f"{proxy.endpoint}/{folder}/?se=2026-11-29&sig={quote(SIGNATURE, safe='')}"
        put, remove = put_in(served / folder), remove_from(served / folder)
        found = RemoteStore("http", root, {}, put, remove, proxy, (SIGNATURE,), can_write=False)
        found.has_ranges = False
        found.wrong = root.replace(quote(SIGNATURE, safe=""), WRONG), {}
        return found

    return make


@pytest.fixture(scope="session")
def sftp_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TcpProxy, int]]:
    pytest.importorskip("paramiko")
    served = tmp_path_factory.mktemp("sftp") / "served"
    served.mkdir()
    with (
        serve_rclone("sftp", served, "--user", USER, "--pass", PASSWORD) as port,
        open_tcp_proxy(port) as proxy,
    ):
        yield proxy, port


@pytest.fixture
def make_sftp(sftp_server: tuple[TcpProxy, int]) -> Any:
    from fsspec.implementations.sftp import SFTPFileSystem

    proxy, port = sftp_server
    options = {"username": USER, "password": PASSWORD, "look_for_keys": False, "allow_agent": False}
    direct = SFTPFileSystem("127.0.0.1", port=port, **options)

    def make(folder: str) -> RemoteStore:
        put, remove = over_sftp(direct, f"/{folder}/")
        root = f"sftp://127.0.0.1:{proxy.port}/{folder}/"
        found = RemoteStore("sftp", root, options, put, remove, proxy, (USER, PASSWORD))
        found.wrong = root, {**options, "password": WRONG}
        return found

    return make


@pytest.fixture(scope="session")
def gcs_proxy() -> Iterator[tuple[Proxy, int]]:
    with pytest.MonkeyPatch.context() as patch:
        # otherwise gcsfs asks what kind a bucket is over gRPC with TLS, which the server does not speak
        patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        pytest.importorskip("gcsfs")
        with serve_gcs() as port, open_proxy(f"http://127.0.0.1:{port}") as proxy:
            yield proxy, port


@pytest.fixture
def make_gcs(gcs_proxy: tuple[Proxy, int]) -> Any:
    from gcsfs.core import GCSFileSystem

    proxy, port = gcs_proxy
    direct = GCSFileSystem(endpoint_url=f"http://127.0.0.1:{port}", token="anon", project="windrow")
    if not direct.exists(BUCKET):
        direct.mkdir(BUCKET)

    def make(folder: str) -> RemoteStore:
        options = {"endpoint_url": proxy.endpoint, "token": "anon", "project": "windrow"}
        put, remove = through(direct, f"{BUCKET}/{folder}/")
        return RemoteStore("gcs", f"gs://{BUCKET}/{folder}/", options, put, remove, proxy)

    return make


@pytest.fixture(scope="session")
def azure_proxy(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Proxy, int]]:
    pytest.importorskip("adlfs")
    from azure.storage.blob._shared import policies_async

    cache = pytestconfig.cache
    assert cache is not None
    directory = tmp_path_factory.mktemp("azure")
    with pytest.MonkeyPatch.context() as patch:
        # Azure's client waits for at least 15 s, and nobody can tell it otherwise through adlfs
        patch.setattr(policies_async.ExponentialRetry, "get_backoff_time", lambda *_: 0.05)
        with (
            serve_azure(cache.mkdir("azurite"), directory) as port,
            open_proxy(f"http://127.0.0.1:{port}") as proxy,
        ):
            yield proxy, port


@pytest.fixture
def make_azure(azure_proxy: tuple[Proxy, int]) -> Any:
    from adlfs import AzureBlobFileSystem

    proxy, port = azure_proxy

    def options_of(endpoint: str) -> dict[str, Any]:
        parts = {
            "DefaultEndpointsProtocol": "http",
            "AccountName": AZURE_ACCOUNT,
            "AccountKey": AZURE_KEY,
            "BlobEndpoint": f"{endpoint}/{AZURE_ACCOUNT}",
        }
        return {"connection_string": ";".join(f"{name}={value}" for name, value in parts.items())}

    direct = AzureBlobFileSystem(**options_of(f"http://127.0.0.1:{port}"))
    if not direct.exists(BUCKET):
        direct.mkdir(BUCKET)

    def make(folder: str) -> RemoteStore:
        put, remove = through(direct, f"{BUCKET}/{folder}/")
        options = options_of(proxy.endpoint)
        root, wrong = f"abfs://{BUCKET}/{folder}/", base64.b64encode(WRONG.encode()).decode()
        found = RemoteStore("azure", root, options, put, remove, proxy, (AZURE_KEY,))
        text = options["connection_string"].replace(AZURE_KEY, wrong)
        found.wrong = root, {"connection_string": text}
        return found

    return make


def make_certificate(path: Path) -> Path:
    """Write a certificate of this machine's loopback, and its key."""
    pytest.importorskip("cryptography")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "windrow tests")])
    now = datetime.datetime.now(datetime.timezone.utc)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(address, critical=False)
        .sign(key, hashes.SHA256())
    )
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    private = key.private_bytes(encoding, form, serialization.NoEncryption())
    path.write_bytes(private + made.public_bytes(encoding))
    return path
