"""What holds of every remote store: listing, reading, writing, retries, secrets in no text, replaced files noticed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
from tests.end_to_end.reading import read_epochs
from tests.faults.proxy import Proxy
from tests.io.remote.stores import FILES, ROWS, WRONG, RemoteStore, content
from tests.io.secret_texts import Texts, chain, listening
from tests.library_versions import FSSPEC
from windrow import Dataset, SourceError

pytestmark = pytest.mark.timeout(120)

MORE_FAULTS = ("internal", "too many", "drop")
EVERYTHING = list(range(FILES * ROWS))


def shuffled(dataset: Dataset, **options: Any) -> Any:
    pipe = dataset.window(blocks_per_window=4).repeat(2).random_shuffle_each_window(seed=1)
    return pipe.options(executor="threads", **options)


def read_all(dataset: Dataset) -> pa.Table:
    """Two shuffled epochs."""
    with shuffled(dataset).iterator() as shard:
        return pa.concat_tables(batch for epoch in read_epochs(shard, 97) for batch in epoch)


@pytest.fixture
def local(store: RemoteStore, tmp_path: Path) -> Path:
    """Three files in the store, and a local copy of them."""
    store.fill(tmp_path / "local")
    return tmp_path / "local"


def test_rows_and_fingerprint_are_those_of_local_files(store: RemoteStore, local: Path) -> None:
    here = windrow.read_parquet(local, target_block_bytes=1)
    there = store.read()
    assert there._plan.source.fingerprint == here._plan.source.fingerprint
    assert read_all(there).equals(read_all(here))
    narrow = store.read(columns=["c3", "x"])
    assert read_all(narrow).equals(
        read_all(windrow.read_parquet(local, columns=["c3", "x"], target_block_bytes=1))
    )


def test_files_folders_globs_and_partitions_are_listed(store: RemoteStore, tmp_path: Path) -> None:
    for number in range(40):
        name = f"year={2020 + number % 2}/city=a b%20c/part-{number:02}.parquet"
        table = pa.table({"x": [number], "year_of": [2020 + number % 2]})
        path = tmp_path / "local" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path)
        store.put(name, path.read_bytes())
    store.put("_hidden.parquet", b"not Parquet")
    here = windrow.read_parquet(tmp_path / "local")
    folder = store.read()
    assert folder._plan.source.fingerprint == here._plan.source.fingerprint
    assert folder.schema().names == ["x", "year_of", "year", "city"]
    assert folder.to_arrow().equals(here.to_arrow())
    assert store.read("year=2021").to_numpy()["x"].tolist() == list(range(1, 40, 2))
    found = store.read("*/*/part-1*.parquet").to_numpy()
    assert sorted(found["x"].tolist()) == list(range(10, 20))
    assert (found["year"] == found["year_of"]).all()
    two = [
        store.url(f"year={year}/city=a b%20c/part-0{part}.parquet") for part, year in ((3, 2021), (4, 2020))
    ]
    assert sorted(windrow.read_parquet(two, storage_options=store.options).to_numpy()["x"].tolist()) == [3, 4]
    for none in ("none", "none/", "none.parquet", "none*.parquet"):
        with pytest.raises(SourceError, match=r"none.* matches nothing"):
            store.read(none)


def test_only_the_bytes_of_selected_columns_are_read(store: RemoteStore, local: Path) -> None:
    if not isinstance(store.proxy, Proxy):
        pytest.skip("no proxy counts the bytes")
    dataset = store.read(columns=["c3"])
    store.mend()
    assert len(dataset.to_numpy()["c3"]) == FILES * ROWS
    sent = store.proxy.answered_bytes["GET"]
    whole = sum(path.stat().st_size for path in local.iterdir())
    # planning has kept the footers; and the files, where the server sends nothing less
    assert FILES * ROWS * 8 <= sent < whole / 8 if store.has_ranges else sent == 0


def test_a_saved_manifest_needs_no_listing(store: RemoteStore, local: Path, tmp_path: Path) -> None:
    store.read().save_manifest(tmp_path / "manifest")
    text = (tmp_path / "manifest").read_bytes().decode(errors="replace")
    assert not any(secret in text for secret in store.secrets)
    again = store.read(manifest=tmp_path / "manifest")
    assert sorted(again.to_numpy()["x"].tolist()) == EVERYTHING


def test_written_files_equal_local_ones(store: RemoteStore, tmp_path: Path) -> None:
    data = windrow.range(500, block_rows=60).map_batches(lambda batch: {**batch, "k": batch["id"] % 3})
    if not store.can_write:
        with pytest.raises(windrow.PlanError, match="cannot be written over HTTP"):
            data.write_parquet(store.url("out"), storage_options=store.options)
        return
    options: dict[str, Any] = {"storage_options": store.options, "partition_by": "k"}
    local = data.write_parquet(tmp_path / "out", partition_by="k")
    # the proxy lets the first attempts at some requests fail
    if isinstance(store.proxy, Proxy):
        store.fail_writes()
    for mode in ("error", "overwrite"):
        written = data.write_parquet(store.url("out"), mode=mode, **options)
        assert [file.sha256 for file in written.files] == [file.sha256 for file in local.files]
    store.mend()
    with pytest.raises(windrow.PlanError, match="is not empty"):
        data.write_parquet(store.url("out"), **options)
    data.limit(10).write_parquet(store.url("out"), mode="append", **options)
    found = windrow.read_parquet(store.url("out"), storage_options=store.options).to_numpy()
    assert sorted(found["id"].tolist()) == sorted([*range(500), *range(10)])
    assert (found["id"] % 3 == found["k"]).all()
    with pytest.raises(windrow.PlanError, match="would replace what is being read"):
        store.read("out").write_parquet(store.url("out"), mode="overwrite", storage_options=store.options)
    assert not any(secret in repr(written) for secret in store.secrets)


@pytest.mark.parametrize(
    "kind",
    ["unavailable", "reset", "cut", *(pytest.param(kind, marks=pytest.mark.nightly) for kind in MORE_FAULTS)],
)
def test_transient_faults_change_no_row(store: RemoteStore, local: Path, kind: str) -> None:
    if store.proxy is None or (kind != "reset" and not isinstance(store.proxy, Proxy)):
        pytest.skip("the store has no such faults")
    store.fail(kind, share=0.5)
    found = read_all(store.read(retry_seconds=60))
    assert found.equals(read_all(windrow.read_parquet(local, target_block_bytes=1)))
    assert store.struck > 0


def test_permanent_faults_end_within_the_budget(store: RemoteStore, local: Path) -> None:
    if store.proxy is None:
        pytest.skip("the store has no faults")
    dataset = store.read(retry_seconds=1)
    store.fail("unavailable", ".parquet", times=float("inf"))
    with pytest.raises(SourceError, match=r"(?s)\d\.parquet.*attempts? failed in .*retry_seconds"):
        dataset.to_numpy()
    with pytest.raises(SourceError, match=r"(?s)attempts? failed in .*(check the|retry_seconds)"):
        store.read(retry_seconds=1)


@pytest.mark.parametrize(("kind", "fix"), [("denied", "permission"), ("no such key", "the file is missing")])
def test_refused_and_missing_files_fail_at_once(store: RemoteStore, local: Path, kind: str, fix: str) -> None:
    if not isinstance(store.proxy, Proxy):
        pytest.skip("the store has no such faults")
    dataset = store.read()
    store.fail(kind, "1.parquet", times=float("inf"))
    with pytest.raises(SourceError, match=rf"(?s)1\.parquet.*{fix}") as caught:
        dataset.to_numpy()
    assert "attempt" not in str(caught.value)
    # each file is asked for twice as HEAD, GET, and a directory; blocks are read at once
    assert store.struck <= 24
    with pytest.raises(SourceError, match=rf"(?s)1\.parquet.*({fix}|matches nothing)"):
        store.read("1.parquet")


def test_a_replaced_file_is_noticed_before_and_within_an_epoch(store: RemoteStore, local: Path) -> None:
    if store.name.startswith("http") and FSSPEC < (2025, 9):
        pytest.skip(
            "fsspec before 2025.9 does not tell the time of the last change, and the servers have no ETags"
        )
    listed = store.read()
    store.put("1.parquet", content(1, 3))
    with pytest.raises(
        SourceError, match=r"1\.parquet, row group \d: the file has changed since it was listed"
    ):
        read_all(listed)
    again = store.read()
    with shuffled(again).iterator() as shard:
        rows = []
        batches = (batch for epoch in shard.iter_epochs() for batch in epoch.iter_batches(50))
        rows.append(next(batches)["y"])
        store.fill(shift=7)
        with pytest.raises(SourceError, match=r"row group \d: the file has changed since"):
            rows.extend(batch["y"] for batch in batches)
    # no row of a new file; those have no y above 0, and before that 1.parquet was such a file
    values = np.concatenate(rows)
    assert ((values >= 0) | ((values <= -ROWS) & (values > -2 * ROWS))).all()


def test_a_removed_file_is_noticed(store: RemoteStore, local: Path) -> None:
    dataset = store.read()
    store.remove("1.parquet")
    with pytest.raises(SourceError, match=r"1\.parquet, row group \d: the file is missing"):
        dataset.to_numpy()


def test_a_run_goes_on_in_the_middle_unless_files_were_replaced(
    store: RemoteStore, local: Path, tmp_path: Path
) -> None:
    store.read().save_manifest(tmp_path / "manifest")
    with shuffled(store.read()).iterator() as shard:
        batches = (batch for epoch in shard.iter_epochs() for batch in epoch.iter_batches(64))
        begun = [next(batches)["x"] for _ in range(7)]
        state = shard.state_dict()
    text = repr(state)
    assert not any(secret in text for secret in store.secrets)
    rest = resume(store.read(), state)
    with shuffled(windrow.read_parquet(local, target_block_bytes=1)).iterator() as shard:
        whole = [batch["x"] for epoch in shard.iter_epochs() for batch in epoch.iter_batches(64)]
    assert [*np.concatenate(begun).tolist(), *rest] == np.concatenate(whole).tolist()
    store.put("2.parquet", content(2, groups=5))
    with pytest.raises(windrow.StateError, match="names, sizes, content"):
        shuffled(store.read()).iterator(state_dict=state)
    known = store.read(manifest=tmp_path / "manifest")
    with pytest.raises(SourceError, match=r"2\.parquet, row group \d: the file has changed"):
        resume(known, state)


def resume(dataset: Dataset, state: dict[str, Any]) -> list[int]:
    """The rest of two epochs, in batches of 64."""
    with shuffled(dataset).iterator(state_dict=state) as shard:
        batches = [batch["x"] for epoch in shard.iter_epochs() for batch in epoch.iter_batches(64)]
    return np.concatenate(batches).tolist()


def untouched(store: RemoteStore) -> None:
    """Let nothing fail."""


def gone(store: RemoteStore) -> None:
    store.remove("1.parquet")


def refused(store: RemoteStore) -> None:
    store.fail("denied", "1.parquet", times=float("inf"))


def unavailable(store: RemoteStore) -> None:
    store.fail("unavailable", ".parquet", times=float("inf"))


def broken(store: RemoteStore) -> None:
    store.fail("reset", times=float("inf"))


def unlisted(store: RemoteStore) -> None:
    store.fail("unavailable", times=float("inf"))


@pytest.mark.parametrize(
    "wrong", [untouched, gone, refused, unavailable, broken, unlisted], ids=lambda f: f.__name__
)
def test_no_text_holds_a_secret(
    store: RemoteStore,
    local: Path,
    wrong: Callable[[RemoteStore], None],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if not store.secrets:
        pytest.skip("the store has no secrets")
    texts = Texts()
    # what fails later is listed first
    later = wrong if wrong in (gone, refused, unavailable) else untouched
    if later is untouched:
        wrong(store)
    with listening(caplog, texts):
        chain(store.root, store.options, texts, tmp_path, before_reading=lambda: later(store))
    texts.said += capfd.readouterr()
    texts.search(*store.secrets)
    assert (wrong is untouched) == (not any("SourceError" in text for text in texts.said))


def test_wrong_credentials_are_refused_at_once_and_not_shown(
    store: RemoteStore, local: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if not store.wrong:
        pytest.skip("the store lets everybody in")
    texts = Texts()
    with listening(caplog, texts), pytest.raises(SourceError, match=r"permission|credentials") as caught:
        windrow.read_parquet(store.wrong[0], storage_options=store.wrong[1])
    assert "attempt" not in str(caught.value)
    texts.add_error(caught.value)
    texts.search(*store.secrets, WRONG)


@pytest.mark.nightly
def test_workers_of_ray_get_the_options(ray_local: Any, store: RemoteStore, local: Path) -> None:
    if store.name == "memory":
        pytest.skip("each process has a memory of its own")
    dataset = store.read()
    with shuffled(dataset).options(executor="ray").iterator() as shard:
        found = pa.concat_tables(batch for epoch in read_epochs(shard, 97) for batch in epoch)
    assert found.equals(read_all(windrow.read_parquet(local, target_block_bytes=1)))
