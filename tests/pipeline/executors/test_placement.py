"""Which tasks are placed again, and where."""

from __future__ import annotations

from windrow.pipeline.executors.ray.placement import MIN_SILENCE_SECONDS, Node, Placement, Planner

CPU = Placement(1.0)
# a moment, and a little
LATER = MIN_SILENCE_SECONDS + 0.1


def busy(*cores: int) -> list[Node]:
    """Nodes a, b, ... with so many CPUs, none of them free."""
    return [Node("abcdef"[at], count, 0.0) for at, count in enumerate(cores)]


def test_a_task_that_runs_or_has_just_been_submitted_stays_where_it_is() -> None:
    planner = Planner(1.0)
    assert planner.begin(0, 0.0) == CPU
    for second in range(1, 100):
        planner.note_heartbeat(0, 0, float(second))
        assert not planner.is_due(second + 0.9)
    planner.end(0, 0, 99.9)
    planner.begin(1, 99.9)
    assert not planner.is_due(99.9 + MIN_SILENCE_SECONDS - 0.1)
    assert not planner.starved


def test_where_no_cpu_is_free_a_task_is_placed_again_without_one() -> None:
    planner = Planner(1.0)
    planner.begin(0, 0.0)
    assert planner.is_due(LATER)
    assert planner.review(LATER, busy(1, 4)) == [(0, 1, Placement(0.0, "b"))]
    assert planner.starved
    # later tasks request none from the start, and at most one per core runs
    assert [planner.begin(key, LATER) for key in range(1, 6)] == [
        *[Placement(0.0, "b")] * 3,
        Placement(0.0, "a"),
        None,
    ]
    # the one that waits is placed as soon as a core has none
    assert planner.review(LATER) == []
    assert planner.end(2, 0, LATER) == []
    assert planner.review(LATER) == [(5, 0, Placement(0.0, "b"))]


def test_cpus_are_known_to_be_lacking_once_a_task_runs_while_it_waits_for_one() -> None:
    planner = Planner(1.0)
    planner.begin(0, 0.0)
    planner.review(LATER, busy(2))
    assert planner.starved
    # a task that has never requested a CPU proves nothing
    assert planner.begin(1, LATER) == Placement(0.0, "a")
    planner.note_heartbeat(1, 0, LATER)
    assert not planner.lacks_cpus
    planner.note_heartbeat(0, 1, LATER)
    assert planner.lacks_cpus


def test_a_task_that_had_a_cpu_all_along_and_was_slow_to_begin_does_not_tell_of_others() -> None:
    planner = Planner(1.0)
    planner.begin(0, 0.0)
    planner.review(LATER, busy(2))
    planner.note_heartbeat(0, 0, LATER)
    planner.note_heartbeat(0, 1, LATER + 1)
    planner.end(0, 1, LATER + 2)
    assert not planner.lacks_cpus


def test_a_copy_that_runs_on_takes_its_core_until_it_has_ended() -> None:
    planner = Planner(1.0)
    planner.begin(0, 0.0)
    assert planner.review(LATER, busy(1)) == [(0, 1, Placement(0.0, "a"))]
    planner.end(0, 0, LATER)
    assert planner.begin(1, LATER) is None
    planner.end_copy(0, 1)
    assert planner.review(LATER) == [(1, 0, Placement(0.0, "a"))]
    # as does one that has failed, while another copy of its task runs
    assert planner.begin(2, LATER) is None
    planner.end_copy(1, 0)
    assert planner.review(LATER) == [(2, 0, Placement(0.0, "a"))]


def test_a_copy_that_waits_for_a_cpu_is_withdrawn_when_another_has_ended() -> None:
    planner = Planner(1.0)
    planner.begin(0, 0.0)
    planner.review(LATER, busy(2))
    assert planner.end(0, 1, LATER + 1) == [0]


def test_once_a_cpu_is_free_again_tasks_ask_for_one() -> None:
    planner = Planner(1.0)
    planner.begin(0, 0.0)
    planner.review(LATER, busy(1))
    assert planner.begin(1, LATER) is None
    assert planner.review(LATER + 1, [Node("a", 1, 1.0)]) == [(1, 0, Placement(1.0, "a"))]
    assert not planner.starved
    assert planner.begin(2, LATER + 1) == CPU
    # the placed copy may have started on that CPU
    assert planner.end(0, 1, LATER + 2) == []


def test_where_a_cpu_is_free_no_task_goes_without() -> None:
    planner = Planner(1.0)
    for key in range(3):
        planner.begin(key, 0.0)
    placed = planner.review(LATER, [Node("a", 4, 1.0), Node("b", 4, 4.0)])
    assert [where for _, _, where in placed] == [Placement(1.0, "b")] * 3
    assert not planner.starved


def test_a_task_that_was_heard_and_is_silent_is_placed_elsewhere() -> None:
    planner = Planner(1.0)
    planner.begin(0, 0.0)
    planner.note_heartbeat(0, 0, 20.0)
    assert not planner.is_due(20.0 + MIN_SILENCE_SECONDS - 0.1)
    assert planner.review(20.0 + LATER, [Node("a", 1, 1.0), *busy(0, 2)]) == [(0, 1, Placement(1.0, "a"))]
    # a node from which nothing came is not tried again, and two more copies are the most
    assert planner.review(20.0 + 2 * LATER, [Node("a", 1, 1.0), *busy(0, 2)[1:]]) == [
        (0, 2, Placement(0.0, "b"))
    ]
    assert not planner.is_due(1000.0)


def test_no_cpu_is_said_to_be_free_only_where_none_of_ours_has_one() -> None:
    planner = Planner(1.0)
    for key in range(2):
        planner.begin(key, 0.0)
    planner.note_heartbeat(0, 0, 4.0)
    planner.note_heartbeat(1, 0, 8.0)
    # one of two workers is lost: its task is placed again, and the others still request a CPU
    assert planner.review(4.0 + LATER, busy(2)) == [(0, 1, Placement(0.0, "a"))]
    assert not planner.starved


def test_task_can_be_queued_as_long_as_others_take() -> None:
    planner = Planner(1.0)
    for key in range(2):
        planner.begin(key, 0.0)
    for second in range(1, 60):
        planner.note_heartbeat(0, 0, float(second))
        assert not planner.is_due(float(second))
    planner.end(0, 0, 60.0)
    assert not planner.is_due(200.0)
    # by then it has been silent for four times as long as the other took
    assert planner.is_due(4 * 60.0)


def test_a_cluster_without_cpus_that_free_up_is_not_asked_twice_for_a_node() -> None:
    planner = Planner(1.0)
    planner.begin(0, 0.0)
    assert planner.review(LATER, busy(2)) == [(0, 1, Placement(0.0, "a"))]
    assert planner.review(2 * LATER, busy(2)) == []
