"""The legs of mixtures that join documents: at any step, they go on as the reference says, however they are cut."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.examples import examples
from tests.laws.joined_mixtures import JOINED, JoinedCase, JoinedRows
from tests.laws.mixture_cases import MixedCase, SourceCase
from tests.pipeline.plan.test_mixture import legs_of
from windrow.pipeline.plan import document_order
from windrow.pipeline.plan.joined_leg import JoinedLeg
from windrow.pipeline.plan.mixture import Mixture
from windrow.pipeline.plan.shares import Shares

ROWS = 120


def plan(case: JoinedCase) -> Mixture:
    """The mixture of a case, whose documents are counted."""
    found = case.pipeline("threads")._plan.mixture
    assert found is not None
    return found


def follow(mixture: Mixture, step_rows: int) -> Iterator[JoinedLeg]:
    """The legs of a mixture, one after the other, up to some row."""
    leg = JoinedLeg(mixture, mixture.start, 0, step_rows)
    while True:
        yield leg
        if leg.is_last or leg.stop >= ROWS:
            return
        leg = JoinedLeg(mixture, leg.point_at(leg.stop), leg.stop, step_rows)


def documents_of(leg: JoinedLeg, row: int, stop: int) -> list[tuple[int, int, int, int]]:
    """The documents with tokens from a sequence up to another: source, number there, first token and length."""
    found, taken, size = leg.order_of_documents, leg.order_of_documents.firsts.tolist(), leg.seq_len
    documents = []
    for source, start, length in zip(
        found.sources.tolist(), found.starts.tolist(), found.lengths.tolist(), strict=True
    ):
        # none of a leg of no sequences, even if a document goes on there
        if row < stop and start < stop * size and start + length > row * size:
            documents.append((source, taken[source], start, length))
        taken[source] += 1
    return documents


@examples(60)
@given(JOINED, st.integers(1, 12), st.sampled_from([3, 30]))
def test_every_step_is_known_as_the_reference_knows_it(case: JoinedCase, step_rows: int, work: int) -> None:
    mixture = plan(case)
    model, names = JoinedRows(case), case.mixed.names
    with legs_of(work):
        for leg in follow(mixture, step_rows):
            assert leg.row == model.sequences
            for row in range(leg.row, min(leg.stop, ROWS) + 1, step_rows):
                if row > leg.row and len(model.step(step_rows)) < step_rows:
                    return
                model.steps_row, model.step_rows = row, step_rows
                # shares that begin at this place hold here, also where no document has begun since
                model.follow(row * case.seq_len)
                point = leg.point_at(row)
                assert point.joined is not None
                assert (point.row, point.steps, point.steps_row) == (model.start, model.steps, row)
                assert point.counts == tuple(model.began[name] for name in names)
                assert point.joined.documents == leg.shared_rows(row) == model.documents
                assert point.joined.counts == tuple(model.counts[name] for name in names)
                assert point.joined.left == len(model.pending)
                if point.joined.left:
                    assert names[point.joined.source] == model.owner
                if case.unit == "tokens":
                    assert point.joined.tokens == tuple(model.tokens[name] for name in names)
                assert leg.weights_at(row).tolist() == [model.weights[name] for name in names]
                assert leg.begun_at(row) == [
                    -1 if model.is_gone(name) else model.began[name] for name in names
                ]


@examples(40)
@given(JOINED, st.integers(1, 12), st.sampled_from([3, 30]), st.data())
def test_any_step_has_a_point_from_which_the_rest_is_the_same(
    case: JoinedCase, step_rows: int, work: int, data: st.DataObject
) -> None:
    mixture = plan(case)
    with legs_of(work):
        leg = JoinedLeg(mixture, mixture.start, 0, step_rows)
        row = data.draw(st.integers(0, min(leg.stop, ROWS) // step_rows)) * step_rows
        point = leg.point_at(row)
        again = JoinedLeg(mixture, point, row, step_rows)
        stop = min(leg.stop, again.stop)
        assert documents_of(again, row, stop) == documents_of(leg, row, stop)
        assert leg.agrees(again)
        assert again.agrees(leg)
        assert leg.serves(point, row, step_rows) == (again.stop == leg.stop)
        assert not leg.serves(point, row, step_rows + 1)
        assert point.joined is not None
        other = replace(point, joined=replace(point.joined, documents=point.joined.documents + 1))
        if row:
            assert not leg.serves(other, row, step_rows)
            assert not leg.agrees(JoinedLeg(mixture, other, row, step_rows))
        for each in (leg, again):
            _check_windows(each)


def _check_windows(leg: JoinedLeg) -> None:
    """Each window has tokens in its first row and in its last, and each document with tokens is in one."""
    size = leg.seq_len
    held: set[tuple[int, int]] = set()
    documents = {
        (source, number): (start, start + length)
        for source, number, start, length in documents_of(leg, leg.row, leg.stop)
        if length
    }
    for needed in leg.windows:
        assert leg.row <= needed.first_row < needed.stop_row <= leg.stop
        numbers = range(needed.window.start, needed.window.stop)
        own = [(needed.source, number) for number in numbers if (needed.source, number) in documents]
        begin, end = min(documents[each][0] for each in own), max(documents[each][1] for each in own)
        assert needed.first_row == max(begin // size, leg.row)
        assert needed.stop_row == -(-min(end, leg.stop * size) // size)
        held.update(own)
    assert set(documents) == held


@pytest.mark.parametrize("most", [1, 2, 7])
def test_documents_are_the_same_however_many_are_chosen_at_a_time(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = (SourceCase((9, 4, 11), seed=1), SourceCase((5, 2), seed=2))
    shares = Shares.steps({0: {"c": 2, "a": 1}, 37: {"c": 1, "a": 5}}, unit="tokens")
    for unit in ("rows", "tokens"):
        case = JoinedCase(MixedCase(sources, (0, 1), shares), 4, unit=unit)
        mixture = plan(case)
        whole = JoinedLeg(mixture, mixture.start, 0, 3)
        expected = documents_of(whole, 0, 60)
        monkeypatch.setattr(document_order, "_MOST_AT_ONCE", most)
        again = JoinedLeg(mixture, mixture.start, 0, 3)
        with legs_of(30):
            assert documents_of(again, 0, 60) == expected
        monkeypatch.undo()
