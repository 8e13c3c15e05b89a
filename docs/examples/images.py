"""Train a small network on images that are decoded and augmented after the shuffle, and draw the timeline of the run.

python docs/examples/images.py --picture images.png
"""

import argparse
import io
import math
import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import windrow
from PIL import Image, ImageDraw

STORED, SIZE, BATCH = 48, 40, 64
SHAPES = ("disc", "ring", "square", "frame", "triangle", "star", "cross", "bar", "half", "hexagon")


def draw(shape, rng):
    """A shape of any size, place, angle and colour as JPEG."""
    image = Image.new("RGB", (STORED, STORED), tuple(rng.integers(0, 100, 3).tolist()))
    pen, colour = ImageDraw.Draw(image), tuple(rng.integers(150, 256, 3).tolist())
    x, y = rng.uniform(20, 28, 2)
    radius, angle = rng.uniform(11, 15), rng.uniform(0, 360)
    box = [x - radius, y - radius, x + radius, y + radius]

    def rays(lengths, turn=0.0):
        """The corners of a polygon, by their distances from its centre."""
        turns = [math.radians(angle + turn + 360 * at / len(lengths)) for at in range(len(lengths))]
        pairs = zip(turns, lengths, strict=True)
        return [(x + radius * far * math.cos(to), y + radius * far * math.sin(to)) for to, far in pairs]

    if shape in ("disc", "ring"):
        pen.ellipse(box, fill=colour if shape == "disc" else None, outline=colour, width=4)
    elif shape == "half":
        pen.chord(box, angle, angle + 180, fill=colour)
    elif shape in ("bar", "cross"):
        ends = rays([1, 1, 1, 1])
        for start in range(1 if shape == "bar" else 2):
            pen.line([ends[start], ends[start + 2]], fill=colour, width=7)
    elif shape == "frame":
        corners = rays([1, 1, 1, 1])
        pen.line([*corners, *corners[:2]], fill=colour, width=4, joint="curve")
    else:
        corners = {"square": [1] * 4, "triangle": [1] * 3, "star": [1, 0.4] * 5, "hexagon": [1] * 6}
        pen.polygon(rays(corners[shape]), fill=colour)
    noisy = np.asarray(image) + rng.integers(-20, 21, (STORED, STORED, 1))
    file = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


def generate(folder, images, seed):
    """Write images of ten classes as bytes in Parquet, in the order of their classes."""
    rng = np.random.Generator(np.random.Philox(seed))
    labels = np.sort(np.arange(images) % len(SHAPES))
    table = pa.table({"image": [draw(SHAPES[label], rng) for label in labels], "label": labels})
    pq.write_table(table, f"{folder}/{seed}.parquet", row_group_size=max(1, images // 16))
    return f"{folder}/{seed}.parquet"


def make_model():
    def layer(given, made, stride=1):
        convolution = torch.nn.Conv2d(given, made, 3, stride=stride, padding=1)
        return [convolution, torch.nn.GroupNorm(4, made), torch.nn.ReLU()]

    pool = torch.nn.MaxPool2d(2)
    features = [*layer(3, 16, stride=2), *layer(16, 32), pool, *layer(32, 64), pool, *layer(64, 64)]
    head = [torch.nn.AdaptiveMaxPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, len(SHAPES))]
    return torch.nn.Sequential(*features, *head)


def scale(images):
    """Numbers around 0 of bytes: after the copy to the device, which is then a quarter as large."""
    return images.permute(0, 3, 1, 2).float() / 64 - 2


def measure_accuracy(model, held):
    with torch.inference_mode():
        right = [
            (model(scale(batch["image"])).argmax(1) == batch["label"]).float()
            for batch in held.iter_torch_batches(batch_size=BATCH)
        ]
    return float(torch.cat(right).mean())


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=3_000)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--picture", default="images.png")
    options = parser.parse_args(arguments)
    torch.manual_seed(7)
    torch.set_num_threads(1)  # the other cores prepare images, as all do where a GPU trains
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    with tempfile.TemporaryDirectory() as folder:
        held = windrow.read_parquet(generate(folder, 500, seed=1))
        held = held.decode_images("image", size=SIZE, crop="center", shorter_side=STORED)
        ds = windrow.read_parquet(generate(folder, options.images, seed=0))
        # the files have the order of classes, so all rows are one window: of JPEGs, not of pixels
        pipe = ds.repeat(options.epochs).random_shuffle_each_window(seed=7)
        # every epoch sees other pixels
        pipe = pipe.decode_images("image", size=SIZE, crop="random", shorter_side=STORED, flip=0.5)
        pipe = pipe.options(executor="threads", progress=False)
        for epoch in pipe.iter_epochs():
            losses = []
            for batch in epoch.iter_torch_batches(batch_size=BATCH):
                loss = torch.nn.functional.cross_entropy(model(scale(batch["image"])), batch["label"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            accuracy = measure_accuracy(model, held)
            print(f"epoch {epoch.number}: loss {np.mean(losses):.3f}, accuracy {accuracy:.3f}", flush=True)
    timeline = pipe.timeline()
    timeline.save(options.picture)
    print(f"the trainer waited {timeline.idle[0]:.1%} of the time")


if __name__ == "__main__":
    main()
