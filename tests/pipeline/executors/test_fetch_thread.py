"""A window that was fetched tells when its map outputs were on their way."""

from __future__ import annotations

import time

from windrow.pipeline.executors.base import WindowData
from windrow.pipeline.executors.ray.fetch_thread import _add_transfers
from windrow.pipeline.statistics.phases import DECODE, TRANSFER, Interval


def test_transfers_are_part_of_the_history_and_known_apart() -> None:
    now = time.time()
    produced, moved = Interval(now - 9, now - 4, {DECODE: 5.0}), Interval(now - 5, now - 3, {TRANSFER: 2.0})
    data = WindowData(None, [], history=[produced])
    _add_transfers(data, [moved])
    assert [one.phases for one in data.history[:2]] == [{DECODE: 4.0}, {TRANSFER: 2.0}]
    # the last one is the way of the answer that made the window complete
    assert [(one.start, set(one.phases)) for one in data.transfers] == [
        (now - 5, {TRANSFER}),
        (now - 3, {TRANSFER}),
    ]
