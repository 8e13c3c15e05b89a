"""The listings that web servers send as pages of HTML: names below a folder, from the links of its page.

fsspec finds links by a regular expression. It loses relative links whose names begin with ``http``, takes every other
scheme, such as ``mailto:``, for a name, and does not decode what HTML escapes.
"""

from __future__ import annotations

from contextlib import suppress
from html.parser import HTMLParser
from urllib.parse import unquote, urljoin, urlsplit


def find_children(page: str, url: str) -> list[str]:
    """The encoded paths below a folder that the links of its page lead to; those of folders end with a slash.

    Links with a query or a fragment are left out, such as those that sort the page; so are hidden names.

    >>> page = '<a href="../">up</a> <a href="?C=N">sort</a> <a href="a&amp;b.csv">file</a> <a href="/x/c/">folder</a>'
    >>> find_children(page, "https://host/x/?sig=0f")
    ['a&b.csv', 'c/']
    """
    links = _Links()
    links.feed(page)
    links.close()
    found: dict[str, None] = {}
    for link in links.found:
        # of links that are no URLs
        with suppress(ValueError):
            found[_find_child(link, url)] = None
    return [child for child in found if child]


class _Links(HTMLParser):
    """Collects the links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found += [value.strip() for name, value in attrs if name == "href" and value]


def _find_child(link: str, url: str) -> str:
    """The path below a folder that a link of its page leads to; empty for other links, and folders within folders."""
    folder = urlsplit(url)
    target = urlsplit(urljoin(folder._replace(query="").geturl(), link))
    if target.scheme not in ("http", "https") or _host(target.netloc) != _host(folder.netloc):
        return ""
    if target.query or target.fragment or link.endswith(("?", "#")):
        return ""
    above = [unquote(part) for part in folder.path.rstrip("/").split("/")]
    parts = target.path.split("/")
    below = parts[len(above) :]
    if [unquote(part) for part in parts[: len(above)]] != above or not any(below):
        return ""
    names = [unquote(part) for part in (below if below[-1] else below[:-1])]
    if any(name in ("", ".", "..") for name in names) or names[0].startswith("."):
        return ""
    is_nested_folder = len(names) > 1 and not below[-1]
    return "" if is_nested_folder else "/".join(below)


def _host(netloc: str) -> str:
    return netloc.rpartition("@")[2]
