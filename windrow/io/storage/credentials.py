"""Credential redaction: keeps secrets out of error messages, names and saved manifests."""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus, unquote

from windrow.core.errors import PlanError, SourceError

_SECRET_KEY = re.compile(
    r"key|secret|token|pass|pwd|cred|sas|auth|cookie|connection|user|signature|external_id", re.IGNORECASE
)
# in URLs of Azure's storage, a container stands there
_USER_INFO = re.compile(r"(?<!abfs://)(?<!abfss://)(?<!wasb://)(?<!wasbs://)(?<=://)[^/@\s]*@")
# parameters of signed URLs: X-Amz-Signature, X-Amz-Credential, X-Amz-Security-Token, sig, access_token ...
_SIGNED = re.compile(
    r"(?<=[?&])(?P<name>[\w.-]*(?:sig|signature|token|secret|key|credential|password|auth)[\w.-]*=)(?P<value>[^&#\s'\"]+)",
    re.IGNORECASE,
)
# narrower: what else a URL states belongs to the name of its file
_SECRET_PARAMETER = re.compile(
    r"(.*[-_.])?(sig|signature|\w*token|secret|(api|access)?_?key|credential|password|auth|authorization)",
    re.IGNORECASE,
)
# parts of connection strings: AccountKey, SharedAccessSignature
_CONNECTION_PART = re.compile(r"(?:^|;)\s*\w*(?:key|signature|password|secret)=([^;]+)", re.IGNORECASE)
# A shorter secret can occur inside ordinary words by chance.
_MIN_LENGTH = 4
# of a library's text
_SHOWN_CHARACTERS = 2_000
_STANDALONE = r"""(?<![^\s'"`=:,;()\[\]{{}}<>&?|]){}(?=[\s'"`=:,;()\[\]{{}}<>&?|]|\.?(?:\s|$))"""
# attributes of filesystems that wrap another one
_WRAPPED_ATTRIBUTES = ("fs", "base_fs", "handler", "server")
# state, not options
_STATE_ATTRIBUTES = {"dircache"}


def check_options(options: object) -> dict[str, Any]:
    """Return storage options as a dict; a `PlanError` without any of their values if they are not by name."""
    if options is None:
        return {}
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        kind = type(options).__name__
        what = "a dict with names that are not strings" if isinstance(options, Mapping) else f"a {kind}"
        raise PlanError(
            f"storage_options= is {what}: give a dict of options by name, such as "
            "{'key': ..., 'secret': ...}"
        )
    return dict(options)


def without_user(url: str) -> str:
    """Remove the user and password from a URL and replace signature parameters by ``***``.

    >>> without_user("https://me:pw@host/x.parquet?part=1&X-Amz-Signature=0f3a")
    'https://host/x.parquet?part=1&X-Amz-Signature=***'
    """
    # paths of local files, of which there can be very many, mostly have neither
    without = _USER_INFO.sub("", url) if "@" in url else url
    return _SIGNED.sub(r"\g<name>***", without) if "?" in without or "&" in without else without


def find_secrets(options: Any) -> tuple[str, ...]:
    """Return every string in storage options that can be a credential, so that `redact` can remove it.

    These are values whose key looks like a secret's, at any depth, and credentials within URLs.

    >>> find_secrets({"key": "k", "client_kwargs": {"endpoint_url": "http://me:pw@host", "verify": "no"}})
    ('k', 'me:pw', 'me', 'pw')
    """
    return tuple(dict.fromkeys(_iterate_secrets(options, False)))


def _iterate_secrets(value: Any, secret: bool) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _iterate_secrets(inner, secret or _SECRET_KEY.search(str(key)) is not None)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for inner in value:
            yield from _iterate_secrets(inner, secret)
    elif isinstance(value, (bytes, bytearray)):
        yield from _iterate_secrets(bytes(value).decode(errors="replace"), secret)
    elif isinstance(value, str) and value:
        if secret:
            for part in (value, *_CONNECTION_PART.findall(value)):
                yield part
                # a shared access signature without the "?" before it
                yield from url_secrets(f"?{part}")
        yield from url_secrets(value)


def is_secret_parameter(name: str) -> bool:
    """Whether a parameter of a URL is named as those are that hold a signature or a key.

    >>> is_secret_parameter("X-Amz-Signature"), is_secret_parameter("author")
    (True, False)
    """
    return _SECRET_PARAMETER.fullmatch(name) is not None


def url_secrets(url: str) -> tuple[str, ...]:
    """Return the credentials in a URL, both percent-encoded and decoded."""
    found = []
    for match in _USER_INFO.finditer(url):
        whole = match[0][:-1]
        found += [whole, *whole.split(":", 1)]
    found += [match["value"] for match in _SIGNED.finditer(url)]
    plain = [unquote(text) for text in found]
    return tuple(dict.fromkeys(text for text in (*found, *plain) if text))


def filesystem_secrets(filesystem: Any) -> tuple[str, ...]:
    """Return the credentials that an fsspec or ``pyarrow.fs`` filesystem was created with."""
    if filesystem is None:
        return ()
    inner = [
        secret
        for name in _WRAPPED_ATTRIBUTES
        for secret in filesystem_secrets(getattr(filesystem, name, None))
    ]
    return tuple(dict.fromkeys([*find_secrets(_options(filesystem)), *inner]))


def _options(filesystem: Any) -> Any:
    if type(filesystem).__module__.startswith("pyarrow."):
        try:
            # pyarrow exposes a filesystem's options only through pickling
            return filesystem.__reduce__()[1]
        except (NotImplementedError, TypeError):
            return {}
    own = vars(filesystem) if hasattr(filesystem, "__dict__") else {}
    return {
        name: value
        for name, value in own.items()
        if not name.startswith("_") and name not in _STATE_ATTRIBUTES
    }


def redact(text: str, secrets: Iterable[str]) -> str:
    """Replace every secret in a text by ``***``, including its quoted and escaped forms.

    A secret of fewer than four characters is replaced only where it is a word of its own: inside words it
    reveals nothing, and replacing it there would make the text unreadable.

    >>> redact("a bad parquet for key 'a' and b4secret5e", ["a", "secret"])
    "*** bad parquet for key '***' and b4***5e"
    """
    forms = {form for secret in secrets for form in _encoded_forms(secret)}
    for form in sorted(forms, key=len, reverse=True):
        pattern = _STANDALONE if len(form) < _MIN_LENGTH else "{}"
        text = re.sub(pattern.format(re.escape(form)), "***", text)
    return without_user(text)


def _encoded_forms(secret: str) -> set[str]:
    return {
        secret,
        quote(secret, safe=""),
        quote(secret),
        quote_plus(secret),
        repr(secret)[1:-1],
        json.dumps(secret)[1:-1],
    }


def safe_cause(error: BaseException, secrets: Iterable[str]) -> BaseException | None:
    """Return the error for ``raise ... from``, or None if its traceback or one of its causes contains a secret."""
    rendered = "".join(traceback.format_exception(error))
    return error if redact(rendered, secrets) == rendered else None


def source_error(what: str, error: BaseException, fix: str, secrets: Collection[str]) -> SourceError:
    """Wrap an error of another library in a SourceError that contains no secret."""
    why = redact(str(error) or type(error).__name__, secrets).strip().rstrip(".")
    # libjvm that is missing is a text of 130 lines
    shown = why if len(why) <= _SHOWN_CHARACTERS else f"{why[:_SHOWN_CHARACTERS]}..."
    return SourceError(f"{without_user(what)}: {shown}; {fix}")
