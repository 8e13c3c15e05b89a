"""Shared access signatures of Azure: they give access, and no text shows them."""

from __future__ import annotations

import datetime
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from tests.io.remote.conftest import AZURE_ACCOUNT, AZURE_KEY
from tests.io.remote.stores import RemoteStore
from tests.io.secret_texts import Texts, chain, listening

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize("fault", ["", "denied", "unavailable"])
def test_a_shared_access_signature_gives_access_and_is_not_shown(
    make_azure: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    from azure.storage.blob import AccountSasPermissions, ResourceTypes, generate_account_sas

    store: RemoteStore = make_azure(tmp_path.name.replace("_", "-"))
    store.fill()
    kinds = ResourceTypes(service=True, container=True, object=True)
    until = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)
    allowed = AccountSasPermissions(read=True, list=True)
    signature = generate_account_sas(AZURE_ACCOUNT, AZURE_KEY, kinds, allowed, until)
    (endpoint,) = re.findall("BlobEndpoint=([^;]*)", store.options["connection_string"])
    options = {"connection_string": f"BlobEndpoint={endpoint};SharedAccessSignature={signature}"}
    (secret,) = re.findall("sig=([^&]*)", signature)
    texts = Texts()

    def fail() -> None:
        if fault:
            store.fail(fault, "1.parquet", times=float("inf"))

    try:
        with listening(caplog, texts):
            chain(store.root, options, texts, tmp_path, before_reading=fail)
    finally:
        store.mend()
    assert bool(fault) == any("SourceError" in text for text in texts.said)
    texts.search(secret, unquote(secret))
