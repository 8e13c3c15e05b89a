"""Paths of the Hugging Face Hub: which files they name, what of these is requested, and with which token."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import pytest

import windrow
from tests.hub_server import TOKEN, Hub
from tests.io.hub.conftest import REPO, ROWS, URL, parquet, trips
from windrow.io.storage.filesystems import connect
from windrow.io.storage.hub import HubFiles


def read(path: Any, hub: Hub, **options: Any) -> windrow.Dataset:
    return windrow.read_parquet(path, storage_options=hub.options(**options))


def rows_of(ds: windrow.Dataset) -> list[int]:
    return sorted(np.concatenate([batch["x"] for batch in ds.iter_batches(1000)]).tolist())


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        (URL, [0, 1, 2]),
        (f"{URL}/data/", [0, 1, 2]),
        (f"{URL}@main/data", [0, 1, 2]),
        (f"{URL}/data/train-*.parquet", [0, 1]),
        (f"{URL}/**/test.parquet", [2]),
        (f"{URL}/data/test.parquet", [2]),
        ([f"{URL}/data/test.parquet", f"{URL}@main/data/train-00000-of-00002.parquet"], [0, 2]),
    ],
)
def test_paths_name_files(hub: Hub, path: Any, parts: list[int]) -> None:
    hub.commit(REPO, trips())
    expected = [row for part in parts for row in range(part * ROWS, (part + 1) * ROWS)]
    assert rows_of(read(path, hub)) == expected


def test_a_dataset_shuffles_and_resumes(hub: Hub) -> None:
    hub.commit(REPO, trips())
    pipe = read(URL, hub, token=TOKEN).window(blocks_per_window=3).random_shuffle_each_window(seed=5)
    pipe = pipe.options(executor="threads")
    with pipe.iterator() as shard:
        batches = shard.iter_batches(1000)
        seen = [next(batches)["x"] for _ in range(4)]
        state = shard.state_dict()
    with pipe.iterator() as shard:
        shard.load_state_dict(state)
        seen += [batch["x"] for batch in shard.iter_batches(1000)]
    assert sorted(np.concatenate(seen).tolist()) == list(range(3 * ROWS))


def test_only_the_selected_columns_are_requested(hub: Hub) -> None:
    files = {f"data/{part}.parquet": parquet(part * 30_000, 30_000, 12) for part in range(2)}
    hub.commit(REPO, files)
    ds = windrow.read_parquet(URL, columns=["x"], storage_options=hub.options())
    planned = len(hub.reads())
    assert rows_of(ds) == list(range(60_000))
    ranges = [span for request in hub.reads() if (span := request.range)]
    # 64 KiB for each footer, and the column chunks of one column of thirteen
    size, chunk = len(files["data/0.parquet"]), 10_000 * 8
    assert planned == 2
    assert all(last - first < chunk + 1000 for first, last in ranges[planned:])
    assert sum(last - first for first, last in ranges[planned:]) < 1.05 * 6 * chunk < 0.1 * 2 * size
    # nothing is downloaded whole
    assert not [r for r in hub.requests if r.method == "GET" and r.status == 200 and "/api/" not in r.path]


def test_planning_asks_for_each_file_once(hub: Hub) -> None:
    hub.commit(REPO, {f"data/{part:02}.parquet": parquet(part * 30, 30) for part in range(20)})
    ds = read(f"{URL}/data", hub)
    # the headers of a file say where its footer is; versions come from the listing
    assert len(asked := [r for r in hub.requests if "/resolve/" in r.path]) == 20
    assert {r.method for r in asked} == {"HEAD"}
    assert len(hub.reads()) == 20
    # what a commit holds stays the same: the hub is asked for nothing more
    assert rows_of(ds) == list(range(600))
    assert len([r for r in hub.requests if "/resolve/" in r.path]) == 20


def test_a_signed_url_that_no_longer_holds_is_renewed(hub: Hub) -> None:
    hub.commit(REPO, trips())
    ds = read(URL, hub)
    hub.signature = "X-Amz-Signature=anotherSECRETsignature"
    assert rows_of(ds) == list(range(3 * ROWS))
    assert len([r for r in hub.requests if r.status == 403]) >= 3
    assert len([r for r in hub.requests if r.method == "HEAD"]) <= 12


def test_small_files_lie_with_the_hub(hub: Hub) -> None:
    hub.commit(REPO, {f"{at}.jsonl": b'{"x": %d}\n' % at for at in range(3)})
    hub.restrict(REPO, private=True)
    ds = windrow.read_json(URL, storage_options=hub.options(token=TOKEN))
    assert rows_of(ds) == [0, 1, 2]
    assert {r.token for r in hub.requests} == {TOKEN}


def test_the_storage_behind_the_hub_gets_no_token(hub: Hub) -> None:
    hub.commit(REPO, trips())
    hub.restrict(REPO, private=True)
    assert read(URL, hub, token=TOKEN).count() == 3 * ROWS
    stored = [r for r in hub.requests if r.path.startswith("/cdn/")]
    assert stored
    assert {r.token for r in stored} == {None}
    assert {r.token for r in hub.requests if r not in stored} == {TOKEN}


def test_a_token_of_the_environment_travels_with_the_dataset(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.commit(REPO, trips())
    hub.restrict(REPO, private=True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    ds = read(URL, hub)
    sent = pickle.dumps(ds)
    assert TOKEN not in f"{ds!r}{ds.window().explain()}"
    # another machine has no such variable
    monkeypatch.delenv("HF_TOKEN")
    assert rows_of(pickle.loads(sent)) == list(range(3 * ROWS))


def test_token_false_sends_none(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.commit(REPO, trips())
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert read(f"{URL}/data/test.parquet", hub, token=False).count() == ROWS
    assert {r.token for r in hub.requests} == {None}


def test_a_filesystem_of_huggingface_hub_is_read_in_the_same_way(hub: Hub) -> None:
    from huggingface_hub import HfFileSystem

    hub.commit(REPO, trips())
    filesystem = HfFileSystem(endpoint=hub.url, token=TOKEN)
    ds = windrow.read_parquet(f"{REPO}/data/test.parquet", filesystem=filesystem)
    assert rows_of(ds) == list(range(2 * ROWS, 3 * ROWS))
    assert isinstance(connect(REPO, filesystem, None).opener, HubFiles)


def test_pickles_are_small_in_large_repositories(hub: Hub) -> None:
    hub.commit(REPO, {**trips(), **{f"other/{at}.txt": b"x" for at in range(200)}})
    source: Any = read(f"{URL}/data", hub, token=TOKEN)._plan.source
    assert len(pickle.dumps(source.files)) < 1000


def png() -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.new("RGB", (4, 3), "red").save(out, "PNG")
    return out.getvalue()


MIXED = {
    "README.md": b"# all kinds\n",
    "dataset_infos.json": b"{}",
    "a.jsonl": b'{"x": 1}\n{"x": 2}\n',
    "b.csv": b"x\n3\n4\n",
    "c.txt": b"5\n6\n",
}


def test_directories_have_the_files_of_a_format_alone(hub: Hub) -> None:
    pytest.importorskip("PIL")
    hub.commit(REPO, {**trips(), **MIXED, "images/0.png": png()})
    given: dict[str, Any] = {"storage_options": hub.options()}
    assert windrow.read_json(URL, **given).take() == [{"x": 1}, {"x": 2}]
    assert windrow.read_csv(URL, **given).take() == [{"x": 3}, {"x": 4}]
    assert windrow.read_text(URL, **given).take() == [{"text": "5"}, {"text": "6"}]
    assert windrow.read_images(URL, **given).take_batch()["image"][0].shape == (3, 4, 3)
    assert windrow.read_parquet(URL, **given).count() == 3 * ROWS
    found = windrow.read_binary_files(f"{URL}/images", include_paths=True, **given).take()
    assert [row["path"].partition("@")[0] for row in found] == [URL]
    # what a path or glob names is read whatever its name
    assert windrow.read_text(f"{URL}/README.md", **given).take() == [{"text": "# all kinds"}]


def test_columns_of_paths_are_read(hub: Hub) -> None:
    pytest.importorskip("PIL")
    hub.commit(REPO, {"images/0.png": png(), "images/1.png": png()})
    hub.restrict(REPO, private=True)
    paths = [f"{URL}/images/0.png", None, f"{URL}@main/images/1.png"]
    ds = windrow.from_items([{"image": path} for path in paths])
    images = ds.decode_images("image", size=2, storage_options=hub.options(token=TOKEN)).take()
    assert [None if row["image"] is None else row["image"].shape for row in images] == [
        (2, 2, 3),
        None,
        (2, 2, 3),
    ]
    assert not [r for r in hub.requests if "/tree/" in r.path]


def test_saved_manifests_list_nothing(hub: Hub, tmp_path: Any) -> None:
    hub.commit(REPO, trips())
    read(URL, hub).save_manifest(tmp_path / "manifest")
    hub.commit(REPO, trips(10**6))
    hub.requests.clear()
    for path in (None, f"{URL}@v1"):
        hub.repos[REPO].refs["v1"] = next(iter(hub.repos[REPO].commits))
        again = windrow.read_parquet(path, manifest=tmp_path / "manifest", storage_options=hub.options())
        assert rows_of(again) == list(range(3 * ROWS))
    assert not [r for r in hub.requests if "/tree/" in r.path]


@pytest.mark.nightly
def test_ray_workers_have_the_token(ray_local: Any, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.commit(REPO, trips())
    hub.restrict(REPO, private=True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    pipe = (
        read(URL, hub).window(blocks_per_window=3).random_shuffle_each_window(seed=5).options(executor="ray")
    )
    assert sorted(row for batch in pipe.iter_batches(1000) for row in batch["x"].tolist()) == list(
        range(3 * ROWS)
    )
