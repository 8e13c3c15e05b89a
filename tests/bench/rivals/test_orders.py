from __future__ import annotations

from dataclasses import replace

from bench.figures import sum_up
from bench.rivals.orders import describe_shuffle, draw_orders
from tests.bench.test_results import FACTS, merge_results


def test_the_table_tells_what_was_promised_and_what_was_seen() -> None:
    figures = replace(
        sum_up(merge_results(), FACTS, None), groups_a_batch=24.04, groups_expected=63.9, neighbours_kept=0.5
    )
    table = draw_orders({"windrow-ray": figures, "scan": figures}, None)
    head, _, line, *rest = table.splitlines()
    assert len(rest) == 1  # the note: a scan delivers nothing
    assert "24.0 of 63.9" in line
    assert "50.00" in line
    assert line[head.index("exactly once") :].startswith("yes (key)")


def test_order_is_left_open_where_there_is_no_key() -> None:
    figures = replace(
        sum_up(merge_results(), FACTS, None), groups_a_batch=None, groups_expected=None, neighbours_kept=None
    )
    assert draw_orders({"daft": figures}, None).splitlines()[2].split()[-3:-1] == ["-", "-"]


def test_our_shuffle_is_the_window_that_was_asked_for() -> None:
    assert describe_shuffle("windrow-threads", None) == "full"
    assert describe_shuffle("windrow-threads", "12") == "windows of 12 blocks"
    assert describe_shuffle("windrow-ray", "256MiB") == "windows of 256MiB"
    assert describe_shuffle("daft", "12") == "full"
