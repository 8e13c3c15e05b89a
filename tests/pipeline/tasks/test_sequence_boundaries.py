"""Marks of documents, positions and segments in sequences, and `cu_seqlens` of NumPy arrays and tensors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from windrow.core.errors import PlanError
from windrow.pipeline.tasks.sequence_boundaries import (
    PADDING,
    cut_lengths,
    find_boundaries,
    mark_documents,
)


@given(
    lengths=st.lists(st.integers(0, 9), max_size=12),
    seq_len=st.integers(1, 7),
    padded=st.integers(0, 6),
)
def test_segments_are_parts_of_documents(lengths: list[int], seq_len: int, padded: int) -> None:
    sizes = np.array(lengths, np.int32)
    marks = mark_documents(sizes)
    marks = marks[: len(marks) - len(marks) % seq_len]
    marks = np.append(marks, np.full(seq_len, PADDING, np.uint8))
    marks[-seq_len : len(marks) - min(padded, seq_len - 1)] = 0
    positions, segments = find_boundaries(marks, seq_len)
    assert positions.dtype == segments.dtype == np.int32
    expected = []
    for sequence in marks.reshape(-1, seq_len).tolist():
        number = position = 0
        for place, mark in enumerate(sequence):
            begins = place == 0 or mark == 1 or (mark == PADDING and sequence[place - 1] != PADDING)
            position = 0 if begins else position + 1
            number += begins
            expected.append((position, -1 if mark == PADDING else number - 1))
    assert list(zip(positions.tolist(), segments.tolist(), strict=True)) == expected
    cu_seqlens, max_seqlen = windrow.cu_seqlens(positions.reshape(-1, seq_len))
    assert cu_seqlens.tolist() == [*np.flatnonzero(positions == 0).tolist(), len(positions)]
    assert max_seqlen == max(np.diff(cu_seqlens))


def test_pieces_of_long_documents() -> None:
    assert cut_lengths(np.array([0, 4, 5, 12], np.int32), 4).tolist() == [0, 4, 4, 1, 4, 4, 4]
    assert cut_lengths(np.zeros(0, np.int32), 4).tolist() == []


def test_tensors() -> None:
    torch = pytest.importorskip("torch")
    positions = torch.tensor([[0, 1, 0], [0, 1, 2]])
    cu_seqlens, max_seqlen = windrow.cu_seqlens(positions)
    assert (cu_seqlens.tolist(), cu_seqlens.dtype, max_seqlen) == ([0, 2, 3, 6], torch.int32, 3)
    cu_seqlens, max_seqlen = windrow.cu_seqlens(positions[:0])
    assert (cu_seqlens.tolist(), max_seqlen) == ([0], 0)
    assert windrow.cu_seqlens(positions[:0].numpy())[0].tolist() == [0]


def test_what_is_no_whole_sequences_is_refused() -> None:
    with pytest.raises(PlanError, match=r"cu_seqlens\(dict\): give it .* batch\['position_ids'\]"):
        windrow.cu_seqlens({"position_ids": np.array([[0, 1]])})
    with pytest.raises(PlanError, match=r"whole sequences .* leave position_ids out of SequenceSlice"):
        windrow.cu_seqlens(np.array([[0, 1, 2, 3]])[:, 2:])
    with pytest.raises(PlanError, match=r"a position is not the next one: .* whole sequences"):
        # the parts of rank 0 of two, in two chunks each
        windrow.cu_seqlens(np.array([[0, 1, 6, 7], [0, 1, 0, 1]]))
    with pytest.raises(
        PlanError, match=r"cu_seqlens\(ndarray of shape \(4,\)\): give it .* \(rows, seq_len\)"
    ):
        windrow.cu_seqlens(np.array([0, 1, 0, 1]))
