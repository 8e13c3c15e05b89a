"""Links of pages, as web servers write them, and the names that they lead to."""

from __future__ import annotations

import html
import http.server
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

import windrow
from tests.io.storage.web_server import serving_folder
from windrow.io.storage.http_pages import find_children

URL = "https://me:pw@host/x/y/?sig=0f"


@pytest.mark.parametrize(
    ("link", "child"),
    [
        ("a.csv", "a.csv"),
        ("./a.csv", "a.csv"),
        ("/x/y/a.csv", "a.csv"),
        ("//host/x/y/a.csv", "a.csv"),
        ("https://host/x/y/a.csv", "a.csv"),
        ("http://host/x/y/a.csv", "a.csv"),
        ("httpd.csv", "httpd.csv"),
        ("https-log/", "https-log/"),
        ("a&amp;b's.csv", "a&b's.csv"),
        ("./c:d.csv", "c:d.csv"),
        ("a%20b/c%2Bd.csv", "a%20b/c%2Bd.csv"),
        ("%C3%A9;(1)!.csv", "%C3%A9;(1)!.csv"),
        ("year=2020/", "year=2020/"),
        (" a.csv ", "a.csv"),
        ("a%3Fb.csv", "a%3Fb.csv"),
    ],
)
def test_links_below_a_folder(link: str, child: str) -> None:
    assert find_children(f'<html><A class="n" HREF="{link}">a name</A>', URL) == [child]


@pytest.mark.parametrize(
    "link",
    [
        "",
        ".",
        "./",
        "..",
        "../",
        "/x/y",
        "/x/y/",
        "/x/yz/a.csv",
        "../../z.csv",
        "%2e%2e/a.csv",
        "?C=N;O=D",
        "a.csv?raw=1",
        "#top",
        "a.csv#top",
        "mailto:me@host",
        "javascript:void(0)",
        "ftp://host/x/y/a.csv",
        "https://other/x/y/a.csv",
        "http://[",
        "b/c/",
        ".hidden",
    ],
)
def test_other_links(link: str) -> None:
    assert find_children(f"<a href='{link}'>{link}</a>", URL) == []


NAMES = [
    "httpd",
    "a",
    "it's",
    "r&d",
    "b#c",
    "100%",
    "é ü",
    "x%20y",
    "a;b,c(1)!",
    "c:d",
    "[1]",
    "a b+c",
    '"q"',
]


class _Apache(http.server.SimpleHTTPRequestHandler):
    """Writes links as Apache does: what a path may have is not encoded, and HTML's characters are escaped."""

    def log_message(self, *args: object) -> None:
        """Log nothing on standard error."""

    def do_GET(self) -> None:
        if self.path != "/":
            super().do_GET()
            return
        links = [quote(name, safe="&'();,!+=@$*") for name in sorted(NAMES)]
        lines = [f'<a href="{html.escape(link, quote=False)}">name</a>' for link in links]
        page = "\n".join(
            [*lines, '<a href="?C=N">N</a> <a href="mailto:me@host">the server of me</a>']
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html;charset=utf-8")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)


@pytest.fixture(params=[http.server.SimpleHTTPRequestHandler, _Apache], ids=["Python", "Apache"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    pytest.importorskip("aiohttp")
    for name in NAMES:
        (tmp_path / name).write_text(f"{name}\n")
    with serving_folder(tmp_path, request.param) as found:
        yield found


def test_every_file_of_a_folder_is_read(url: str) -> None:
    assert sorted(row["text"] for row in windrow.read_text(url).take()) == sorted(NAMES)
    for name in NAMES:
        assert windrow.read_text(f"{url}{quote(name)}").take() == [{"text": name}]
