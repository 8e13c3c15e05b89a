from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.core.errors import PlanError
from windrow.io.storage.hub import HubFiles, HubPath, parse_hub_path, with_revision

NAMES = st.text("abcXYZ019._-=", min_size=1, max_size=8)
REVISIONS = st.one_of(
    st.none(),
    st.lists(NAMES, min_size=1, max_size=3).map("/".join),
    st.builds("refs/{}/{}".format, st.sampled_from(["convert", "pr"]), NAMES),
)
PREFIXES = st.sampled_from(["datasets/", "spaces/", ""])


@given(prefix=PREFIXES, owner=NAMES, name=NAMES, revision=REVISIONS, path=st.lists(NAMES, max_size=3))
def test_paths_are_split_and_joined(
    prefix: str, owner: str, name: str, revision: str | None, path: list[str]
) -> None:
    repo = f"{owner}/{name}"
    whole = HubPath(prefix, repo, revision, "/".join(path))
    plain = "/".join([f"{prefix}{repo}", *path])
    written = [plain] if revision is None else [whole.at(quote(revision, safe=""))]
    if revision is not None and (revision.startswith("refs/") or "/" not in revision):
        written.append(whole.at(revision))
    assert [parse_hub_path(text) for text in written] == [whole] * len(written)
    # the same revision as an option
    assert parse_hub_path(with_revision(plain, revision)) == whole
    assert parse_hub_path(with_revision(written[0], revision)) == whole
    if revision is not None:
        with pytest.raises(PlanError, match="give one of them"):
            with_revision(written[0], f"{revision}x")


@pytest.mark.parametrize("path", ["", "datasets/me", "datasets", "buckets/me/store/x", "me"])
def test_what_lies_in_no_repository(path: str) -> None:
    assert parse_hub_path(path) is None
    assert with_revision(path, "main") == path


def test_texts_of_a_reader_have_no_token() -> None:
    assert "SECRET" not in repr(HubFiles("http://127.0.0.1:1", "hf_SECRET"))


@pytest.mark.parametrize(
    ("location", "is_sent"),
    [
        ("https://hub.test/api/resolve-cache/x", True),
        ("https://cdn.test/x", False),
        ("https://hub.test.evil/x", False),
        ("https://hub.test:8443/x", False),
        ("http://hub.test/x", False),
    ],
)
def test_the_token_is_sent_to_the_endpoint_alone(
    location: str, is_sent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    utils = pytest.importorskip("huggingface_hub.utils")
    sent: dict[str, str] = {}

    class Session:
        def get(self, _: str, headers: dict[str, str], **__: object) -> None:
            sent.update(headers)

    monkeypatch.setattr(utils, "get_session", Session)
    HubFiles("https://hub.test", "hf_SECRET")._get(location, 0, 10)
    assert ("authorization" in sent) == is_sent
