"""Versions of stored files, from listings and from single files."""

from __future__ import annotations

from datetime import datetime, timezone

from windrow.io.storage.file_versions import version_from_listing

# of one object, as s3fs returns it from a listing and alone; servers take the times from different clocks
LISTED = {
    "size": 512,
    "ETag": "cec95c55a18cc692",
    "LastModified": datetime(2026, 11, 30, 17, 35, 26, 97000, timezone.utc),
}
ALONE = {
    "size": 512,
    "ETag": '"cec95c55a18cc692"',
    "LastModified": datetime(2026, 11, 30, 17, 35, 25, tzinfo=timezone.utc),
    "VersionId": "v1",
}


def test_an_etag_alone_identifies_a_version() -> None:
    assert version_from_listing(LISTED) == version_from_listing(ALONE)
    assert version_from_listing(LISTED) != version_from_listing({**LISTED, "ETag": "dec95c55a18cc692"})
    assert version_from_listing(LISTED) != version_from_listing({**LISTED, "size": 513})


def test_times_identify_a_version_without_a_strong_etag() -> None:
    for etag in (None, "", 'W/"cec95c55a18cc692"'):
        listed = {**LISTED, "ETag": etag}
        assert version_from_listing(listed) != version_from_listing(
            {**listed, "LastModified": ALONE["LastModified"]}
        )
