"""URLs of web servers as names without credentials, and back."""

from __future__ import annotations

import pickle
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import windrow
from tests.io.storage.web_server import serving
from windrow.io.storage.filesystems import Files, connect
from windrow.io.storage.http_files import split_url

pytest.importorskip("aiohttp")

AWS = "X-Amz-Algorithm=AWS4&X-Amz-Credential=me%2F20&X-Amz-Date=2026&X-Amz-Expires=60&X-Amz-Signature=0f"
AZURE = "sv=2024-11-04&se=2026-11-29&sr=c&sp=rl&spr=https&sig=a%2Bb%3D"
GOOGLE = "GoogleAccessId=me&Expires=17&Signature=a%2Fb"


def opened(*urls: str) -> tuple[Any, tuple[str, ...]]:
    connection = connect(list(urls), None, {})
    return connection.opener, connection.paths


@pytest.mark.parametrize("signature", [AWS, AZURE, GOOGLE, "token=abc", "access_token=abc", "api_key=abc"])
def test_signatures_belong_to_no_name(signature: str) -> None:
    files, names = opened(
        f"https://host/a%20b.parquet?{signature}", f"https://host/c.parquet?part=1&{signature}"
    )
    assert names == ("host/a b.parquet", "host/c.parquet?part=1")
    assert files._url(names[0]) == f"https://host/a%20b.parquet?{signature}"
    assert files._url(names[1]) == f"https://host/c.parquet?part=1&{signature}"
    assert files._url("host/other.parquet") == "https://host/other.parquet"
    assert signature not in repr(Files(names[0], files)) + Files(names[0], files).url


@pytest.mark.parametrize("query", ["id=5", "author=me&sr=2", "design=x", "se=1"])
def test_other_parameters_belong_to_the_name(query: str) -> None:
    files, (name,) = opened(f"https://host/x?{query}")
    assert name == f"host/x?{query}"
    assert files._url(name) == f"https://host/x?{query}"


def test_the_signature_of_a_folder_is_that_of_its_files() -> None:
    files, names = opened("https://host/data/?sig=abc", "https://host/other/*.parquet?token=def")
    assert names == ("host/data/", "host/other/*.parquet")
    assert files._url("host/data/x/y.parquet") == "https://host/data/x/y.parquet?sig=abc"
    assert files._url("host/other/y.parquet") == "https://host/other/y.parquet?token=def"
    assert files._url("host/database/y.parquet") == "https://host/database/y.parquet"


def test_logins_are_those_of_their_server() -> None:
    files, names = opened("https://me:p%2Fw@one/x", "https://two:8443/x")
    copy = pickle.loads(pickle.dumps(files))
    assert copy == files
    for some in (files, copy):
        assert [some._url(name) for name in names] == ["https://me:p%2Fw@one/x", "https://two:8443/x"]
        assert some.unstrip_protocol(names[0]) == "https://one/x"


def test_servers_of_both_schemes_are_read_together() -> None:
    files, names = opened("https://host/x", "http://host/y", "http://other:8080/z")
    assert names == ("host/x", "host:80/y", "other:8080/z")
    assert [files._url(name) for name in names] == [
        "https://host/x",
        "http://host:80/y",
        "http://other:8080/z",
    ]
    # footers are kept by filesystem and name
    assert names[2] == opened("https://host/x", "https://other:8080/z")[1][1]
    assert (
        opened("https://host/x", "http://other:8080/z")[0]
        != opened("https://host/x", "https://other:8080/z")[0]
    )


@pytest.mark.parametrize(
    ("urls", "words"),
    [
        (["https://me:hidden-1@host/x", "https://me:hidden-2@host/y"], "different credentials"),
        (["https://host/x?sig=hidden-1", "https://host/x?sig=hidden-2"], "differ in their signatures"),
    ],
)
def test_credentials_that_contradict_each_other_raise(urls: list[str], words: str) -> None:
    with pytest.raises(windrow.PlanError, match=words) as caught:
        connect(urls, None, {})
    assert "hidden" not in str(caught.value)


@given(st.lists(st.text("ab =%#+&é日?235F", min_size=1, max_size=6), min_size=1, max_size=3))
def test_urls_come_back_from_their_names(parts: list[str]) -> None:
    files, _ = opened("https://me:pw@host/x?sig=abc")
    url = "https://me:pw@host/" + "/".join(quote(part, safe="") for part in parts)
    name = split_url(url)[3]
    assert "?" not in name
    assert files._url(name) == url


@example([b"/", b"group/project", b"a%2Fb"])
@given(st.lists(st.binary(min_size=1, max_size=6), min_size=1, max_size=3))
def test_urls_of_bytes_that_are_no_text_come_back_from_their_names(parts: list[bytes]) -> None:
    files, _ = opened("https://me:pw@host/signed-file?sig=abc")
    url = "https://me:pw@host/" + "/".join(quote(part, safe="") for part in parts)
    name = split_url(url)[3]
    # names are stored in manifests
    name.encode()
    assert files._url(name) == url


def test_a_listing_of_names_that_are_not_utf_8_is_read() -> None:
    latin, content = "/caf%E9.csv", b"x\n1\n"

    class Server(BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            """Log nothing on standard error."""

        def do_GET(self) -> None:
            page = f'<a href="{latin}">caf?.csv</a>'.encode()
            body = {"/": page, latin: content}.get(self.path)
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Type", "text/html" if body is page else "text/csv")
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body or b"")

        def do_HEAD(self) -> None:
            self.do_GET()

    with serving(Server) as port:
        ds = windrow.read_csv(f"http://127.0.0.1:{port}/", include_paths=True)
        (row,) = ds.take()
    assert row["x"] == 1
    assert row["path"].endswith("caf%E9.csv")


@given(st.lists(st.text("ab =%#+&é日", min_size=1, max_size=6), min_size=1, max_size=3))
def test_names_come_back_from_their_urls(parts: list[str]) -> None:
    files, _ = opened("https://me:pw@host/x?sig=abc")
    name = "/".join(["host", *parts])
    assert split_url(files._url(name))[3] == name
