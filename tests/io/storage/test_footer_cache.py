"""Caching and eviction of parsed footers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from windrow.io.storage.footer_cache import FooterCache


@dataclass(frozen=True)
class Stated:
    """A stand-in for a parsed footer."""

    serialized_size: int


class Footers:
    """Returns footers of given sizes, and records which are read."""

    def __init__(self) -> None:
        self.reads: list[bytes] = []

    def reader(self, digest: bytes, size: int) -> Callable[[], Stated]:
        def read() -> Stated:
            self.reads.append(digest)
            return Stated(size)

        return read


def test_a_footer_is_read_once() -> None:
    cache, footers = FooterCache(4, 100), Footers()
    first = cache.get(b"a", footers.reader(b"a", 10))
    assert cache.get(b"a", footers.reader(b"a", 10)) is first
    assert (footers.reads, len(cache._cached), cache._bytes) == ([b"a"], 1, 10)


@pytest.mark.parametrize(("most", "max_bytes", "size"), [(2, 1000, 1), (100, 20, 10)])
def test_least_recently_used_footer_is_evicted_first(most: int, max_bytes: int, size: int) -> None:
    cache, footers = FooterCache(most, max_bytes), Footers()
    for digest in (b"a", b"b", b"a", b"c", b"a", b"b"):
        cache.get(digest, footers.reader(digest, size))
    assert footers.reads == [b"a", b"b", b"c", b"b"]
    assert (len(cache._cached), cache._bytes) == (2, 2 * size)


def test_footer_larger_than_the_cache_is_cached_alone() -> None:
    cache, footers = FooterCache(4, 100), Footers()
    for digest, size in ((b"a", 10), (b"b", 500), (b"b", 500), (b"a", 10)):
        cache.get(digest, footers.reader(digest, size))
    assert footers.reads == [b"a", b"b", b"a"]
    assert (len(cache._cached), cache._bytes) == (1, 10)


def test_unreadable_footer_is_not_cached() -> None:
    def fail() -> Stated:
        raise OSError("gone")

    cache, footers = FooterCache(4, 100), Footers()
    with pytest.raises(OSError, match="gone"):
        cache.get(b"a", fail)
    assert cache.get(b"a", footers.reader(b"a", 1)) == Stated(1)


def test_threads_share_a_cache() -> None:
    cache, footers = FooterCache(8, 40), Footers()

    def ask(number: int) -> int:
        digest = bytes([number % 13])
        return int(cache.get(digest, footers.reader(digest, number % 13)).serialized_size)

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(ask, range(2_000))) == [number % 13 for number in range(2_000)]
    assert 0 < len(cache._cached) <= 8
    assert 0 < cache._bytes <= 40
