"""Datasets of Hugging Face's library: what it has loaded stays mapped, and columns are what their features say."""

from __future__ import annotations

import io
import pickle
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windrow
from windrow.core.errors import PlanError

datasets = pytest.importorskip("datasets")
ROWS = 4_000


@pytest.fixture(autouse=True)
def _quiet() -> None:
    datasets.disable_progress_bars()


def load(kind: str, place: Path, **given: Any) -> Any:
    return datasets.load_dataset(kind, cache_dir=str(place / "cache"), **given)


def png(mode: str, size: tuple[int, int], color: Any) -> bytes:
    image = pytest.importorskip("PIL.Image")
    out = io.BytesIO()
    image.new(mode, size, color).save(out, "PNG")
    return out.getvalue()


def sound(rate: int, samples: int, channels: int = 1) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((channels, 2, rate, 0, "NONE", ""))
        file.writeframes(np.arange(samples * channels, dtype=np.int16).tobytes())
    return out.getvalue()


def spans(column: pa.ChunkedArray) -> list[tuple[int, int]]:
    """The addresses of the buffers of a column."""
    buffers = [buffer for chunk in column.chunks for buffer in chunk.buffers() if buffer is not None]
    return [(buffer.address, buffer.address + buffer.size) for buffer in buffers]


def test_what_was_loaded_is_mapped_and_not_copied(tmp_path: Path) -> None:
    windrow.from_numpy({"x": np.arange(ROWS), "y": np.ones(ROWS)}).write_parquet(tmp_path / "data")
    loaded = load("parquet", tmp_path, data_files=str(tmp_path / "data" / "*.parquet"), split="train")
    mapped = [span for name in ("x", "y") for span in spans(loaded.data.table.column(name))]
    ds = windrow.from_huggingface(loaded, target_block_bytes=8_000)
    source: Any = ds._plan.source
    reader, addresses = source.reader, source.addresses(range(ds.num_blocks()))
    assert ds.num_blocks() > 4
    for address in addresses:
        table = reader.read(address)
        for start, stop in (span for name in ("x", "y") for span in spans(table.column(name))):
            assert any(first <= start and stop <= last for first, last in mapped)
    # another process maps the files itself
    other = pickle.loads(pickle.dumps(reader))
    before = pa.total_allocated_bytes()
    tables = [other.read(address) for address in addresses]
    assert sum(table.nbytes for table in tables) >= 16 * ROWS
    assert pa.total_allocated_bytes() - before < ROWS
    assert np.concatenate([table.column("x").to_numpy() for table in tables]).tolist() == list(range(ROWS))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of images, as files."""
    for kind, color in (("cat", "red"), ("dog", "blue")):
        (tmp_path / "photos" / kind).mkdir(parents=True)
        for number in range(3):
            data = png("RGB", (40, 30), color)
            (tmp_path / "photos" / kind / f"{number}.png").write_bytes(data)
    return tmp_path / "photos"


def test_an_image_folder(photos: Path, tmp_path: Path) -> None:
    loaded = load("imagefolder", tmp_path, data_dir=str(photos), split="train")
    # the library stores paths alone
    assert [row["image"]["bytes"] for row in loaded.cast_column("image", datasets.Image(decode=False))] == [
        None
    ] * 6
    stored = windrow.from_huggingface(loaded)
    assert stored.schema().field("image").type == pa.struct({"bytes": pa.binary(), "path": pa.string()})
    expected = [np.asarray(row["image"]) for row in loaded]
    for ds in (windrow.from_huggingface(loaded, decode=True), stored.decode_images("image")):
        batch = ds.take_batch()
        assert all(map(np.array_equal, batch["image"], expected))
        assert [loaded.features["label"].names[label] for label in batch["label"]] == ["cat"] * 3 + [
            "dog"
        ] * 3
    assert stored.decode_images("image", size=8).take_batch()["image"].shape == (6, 8, 8, 3)


def pipeline_text(pipe: Any) -> list[str]:
    """The calls after window()."""
    calls = [line.strip().partition("(")[0] for line in str(pipe).splitlines()[2:]]
    return [call for call in calls if call != ".window"]


def test_decoding_follows_the_shuffle(photos: Path, tmp_path: Path) -> None:
    loaded = load("imagefolder", tmp_path, data_dir=str(photos), split="train")
    ds = windrow.from_huggingface(loaded, decode=True)
    shuffled = ds.window().random_shuffle_each_window(seed=3)
    assert pipeline_text(shuffled) == [".random_shuffle_each_window", ".decode_images"]
    assert "decode_images" in str(shuffled.explain())
    mapped = ds.map_batches(lambda batch: {**batch, "height": np.array([len(x) for x in batch["image"]])})
    both = mapped.window().random_shuffle_each_window(seed=3)
    assert pipeline_text(both) == [".decode_images", ".map_batches", ".random_shuffle_each_window"]
    # the rows and their order are the same
    first = [(row["label"], row["image"].sum()) for row in shuffled.iter_rows()]
    assert first == [(row["label"], row["image"].sum()) for row in both.iter_rows()]
    assert {row["height"] for row in both.iter_rows()} == {30}
    # what comes between the shuffle and all transforms after it does not find them in its way
    by_label = shuffled.sort_each_window("label")
    assert pipeline_text(by_label) == [".decode_images", ".random_shuffle_each_window", ".sort_each_window"]
    assert [row["label"] for row in by_label.iter_rows()] == [0, 0, 0, 1, 1, 1]
    assert pipeline_text(ds.window()) == [".decode_images"]
    # which rows stay can depend on the images
    dropped = shuffled.filter(lambda row: row["image"][0, 0, 0] > 0)
    assert pipeline_text(dropped) == [".decode_images", ".filter", ".random_shuffle_each_window"]
    assert [row["label"] for row in dropped.iter_rows()] == [0, 0, 0]
    with pytest.raises(PlanError, match="stands between"):
        shuffled.map_batches(lambda batch: batch).sort_each_window("label")


def test_images_as_their_features_say(tmp_path: Path) -> None:
    path = tmp_path / "path.png"
    path.write_bytes(png("RGB", (3, 2), "white"))
    values = [
        {"bytes": png("L", (4, 2), 7), "path": "no such file"},
        {"bytes": None, "path": str(path)},
        None,
    ]
    kinds = {
        "plain": datasets.Image(),
        "grey": datasets.Image(mode="L"),
        "kept": datasets.Image(decode=False),
    }
    features = datasets.Features({**kinds, "many": datasets.Sequence(datasets.Image())})
    rows = datasets.Dataset.from_dict({**dict.fromkeys(kinds, values), "many": [values[:1]] * 3}, features)
    found = windrow.from_huggingface(rows, decode=True).take()
    for name, shapes in (("plain", [(2, 4, 3), (2, 3, 3)]), ("grey", [(2, 4), (2, 3)])):
        assert [None if row[name] is None else row[name].shape for row in found] == [*shapes, None]
    assert (found[0]["grey"] == 7).all()
    assert [row["kept"] for row in found] == values
    assert [row["many"] for row in found] == [values[:1]] * 3


def test_audio_as_its_feature_says() -> None:
    pytest.importorskip("av")
    values = [{"bytes": sound(8_000, 800), "path": None}, {"bytes": sound(16_000, 800), "path": None}, None]
    table = pa.table({"sound": pa.array(values, pa.struct({"bytes": pa.binary(), "path": pa.string()}))})
    rows = datasets.Dataset(table)

    def cast(**given: Any) -> Any:
        return rows.cast_column("sound", datasets.Audio(**given))

    found = windrow.from_huggingface(cast(sampling_rate=16_000), decode=True).take()
    assert [None if row["sound"] is None else len(row["sound"]) for row in found] == [1600, 800, None]
    same = windrow.from_huggingface(cast()).decode_audio("sound", sample_rate=16_000).take()
    assert np.array_equal(same[1]["sound"], found[1]["sound"])
    kept = windrow.from_huggingface(cast(sampling_rate=16_000, decode=False), decode=True)
    assert kept.take() == [{"sound": value} for value in values]
    with pytest.raises(PlanError, match=r"column 'sound' has no sampling_rate.*cast_column\('sound'"):
        windrow.from_huggingface(cast(), decode=True)


@pytest.mark.skipif(
    not hasattr(datasets.Audio(), "num_channels"), reason="this version's Audio has no num_channels"
)
def test_channels_of_audio() -> None:
    pytest.importorskip("av")
    table = pa.table({"sound": [{"bytes": sound(8_000, 800, 2), "path": None}]})

    def cast(**given: Any) -> Any:
        return datasets.Dataset(table).cast_column("sound", datasets.Audio(sampling_rate=8_000, **given))

    found = windrow.from_huggingface(cast(num_channels=2), decode=True).take()
    assert found[0]["sound"].shape == (2, 800)
    assert len(windrow.from_huggingface(cast(), decode=True).take()[0]["sound"]) == 800
    with pytest.raises(PlanError, match=r"must be 1 \(mono\) or 2"):
        windrow.from_huggingface(cast(num_channels=6), decode=True)
    with pytest.raises(PlanError, match="stream_index"):
        windrow.from_huggingface(cast(stream_index=1), decode=True)


def test_other_features(tmp_path: Path) -> None:
    features = datasets.Features(
        {
            "label": datasets.ClassLabel(names=["no", "yes"]),
            "text": datasets.Translation(languages=["de", "en"]),
            "ids": datasets.Sequence(datasets.Value("int32")),
            "pair": datasets.Sequence(datasets.Value("float32"), length=2),
            "cube": datasets.Array3D((1, 2, 3), "int16"),
        }
    )
    values = {
        "label": ["yes", 0],
        "text": [{"de": "ja", "en": "yes"}, {"de": "nein", "en": "no"}],
        "ids": [[1, 2, 3], []],
        "pair": [[0.5, 1.5], [2.5, 3.5]],
        "cube": list(np.arange(12, dtype=np.int16).reshape(2, 1, 2, 3)),
    }
    datasets.Dataset.from_dict(values, features).save_to_disk(str(tmp_path / "rows"))
    ds = windrow.from_huggingface(datasets.load_from_disk(str(tmp_path / "rows")), decode=True)
    batch = ds.take_batch()
    assert batch["label"].tolist() == [1, 0]
    assert batch["cube"].shape == (2, 1, 2, 3)
    assert batch["pair"].tolist() == values["pair"]
    rows = ds.take()
    assert [row["text"] for row in rows] == values["text"]
    assert [list(row["ids"]) for row in rows] == values["ids"]


def test_wrong_arguments() -> None:
    rows = datasets.Dataset.from_dict({"x": [1, 2]})
    with pytest.raises(PlanError, match=r"splits \('train', 'test'\): give one of them"):
        windrow.from_huggingface(datasets.DatasetDict(train=rows, test=rows))
    with pytest.raises(PlanError, match="decode='yes' must be True or False"):
        windrow.from_huggingface(rows, decode="yes")  # type: ignore[arg-type]
