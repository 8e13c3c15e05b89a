"""What errors of the Hugging Face Hub mean, and what to do about them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from windrow.core.errors import SourceError
from windrow.io.storage.credentials import safe_cause
from windrow.io.storage.error_causes import is_hub_error
from windrow.io.storage.hub import HubPath
from windrow.io.storage.retries import find_status

_TOKEN = "storage_options={'token': ...}, or the variable HF_TOKEN"


@contextmanager
def hub_errors(place: HubPath, secrets: Collection[str]) -> Iterator[None]:
    """Map the errors of a request for a revision to a SourceError that says which of them it is."""
    try:
        yield
    except Exception as error:
        text = _explain(error, place)
        if text is None:
            raise
        raise SourceError(f"hf://{place.prefix}{place.repo}: {text}") from safe_cause(error, secrets)


def _explain(error: Exception, place: HubPath) -> str | None:
    if is_hub_error(error, "GatedRepoError"):
        return (
            "the repository is gated: accept its conditions on its page of the Hub, and give a token of the same "
            f"account: {_TOKEN}"
        )
    if is_hub_error(error, "RevisionNotFoundError"):
        if place.revision is not None and place.revision.startswith("refs/convert/"):
            return (
                f"there is no revision {place.revision!r}: the Hub has not converted this dataset (it converts "
                "public ones, some time after an upload); read its own files"
            )
        return f"there is no revision {place.revision!r}: give one of its branches, tags or commits"
    if is_hub_error(error, "DisabledRepoError"):
        return "the Hub has disabled access to the repository: see its page"
    if is_hub_error(error, "RepositoryNotFoundError"):
        kind = "" if place.type != "model" else " ('hf://datasets/' begins the path of a dataset)"
        return (
            f"there is no such {place.type}, or it is private: check the name{kind}, or give a token with access: "
            f"{_TOKEN}"
        )
    if is_hub_error(error, "OfflineModeIsEnabled"):
        return "huggingface_hub is in offline mode: unset the variable HF_HUB_OFFLINE"
    status, _ = find_status(error)
    if status in (401, 403):
        return f"the Hub refuses the token (HTTP status {status}): give a valid one: {_TOKEN}"
    return None
