"""Failures cross processes: the class, the message, the cause and the traceback arrive."""

from __future__ import annotations

import pickle
import traceback

import pytest

from windrow.core.errors import PlanError, SourceError, StallError, StateError, TransformError, WindrowError
from windrow.pipeline.coordinator.failures import Failure, RemoteError, RemoteTracebackError


class _PickyError(Exception):
    """Pickles, but cannot be built again from its args."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(f"{message} ({code})")


def _user_function(error: BaseException) -> None:
    raise error


def _captured(original: Exception | None, ours: WindrowError) -> Failure:
    try:
        if original is None:
            raise ours
        try:
            _user_function(original)
        except Exception as exc:
            raise ours from exc
    except WindrowError as exc:
        return Failure.capture(exc)
    raise AssertionError


def _sent(failure: Failure) -> Failure:
    received: Failure = pickle.loads(pickle.dumps(failure))
    assert received.live is None
    return received


def _rethrown(failure: Failure) -> BaseException:
    try:
        failure.rethrow()
    except BaseException as exc:
        return exc
    raise AssertionError


@pytest.mark.parametrize("kind", [PlanError, SourceError, StallError, StateError, TransformError])
def test_class_message_and_cause_arrive(kind: type[WindrowError]) -> None:
    error = _rethrown(_sent(_captured(KeyError("fare"), kind("map failed on part-3"))))
    assert type(error) is kind
    assert str(error) == "map failed on part-3"
    assert type(error.__cause__) is KeyError
    assert error.__cause__.args == ("fare",)
    remote = error.__cause__.__cause__
    assert isinstance(remote, RemoteTracebackError)
    assert "in _user_function" in str(remote)


def test_the_printed_error_holds_the_users_frame() -> None:
    error = _rethrown(_sent(_captured(ValueError("bad"), TransformError("map failed"))))
    printed = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    assert "in _user_function" in printed
    assert printed.index("in _user_function") < printed.rindex("TransformError: map failed")


def test_exception_that_cannot_be_rebuilt_is_reported_as_text() -> None:
    error = _rethrown(_sent(_captured(_PickyError("no", 7), TransformError("map failed"))))
    assert type(error) is TransformError
    assert type(error.__cause__) is RemoteError
    assert str(error.__cause__) == "_PickyError: no (7)"


def test_exception_that_does_not_pickle_is_reported_as_text() -> None:
    class LocalError(Exception):
        pass

    error = _rethrown(_sent(_captured(LocalError("here only"), TransformError("map failed"))))
    assert type(error.__cause__) is RemoteError
    assert "LocalError: here only" in str(error.__cause__)


def test_a_failure_without_cause_keeps_its_traceback() -> None:
    error = _rethrown(_sent(_captured(None, SourceError("part-3 is truncated"))))
    assert type(error) is SourceError
    assert isinstance(error.__cause__, RemoteTracebackError)
    assert "part-3 is truncated" in str(error.__cause__)


def test_another_exception_arrives_as_itself() -> None:
    try:
        _user_function(ZeroDivisionError("a bug"))
    except ZeroDivisionError as exc:
        failure = Failure.capture(exc)
    error = _rethrown(_sent(failure))
    assert type(error) is ZeroDivisionError
    assert isinstance(error.__cause__, RemoteTracebackError)
    assert _rethrown(failure) is failure.live


def test_within_a_process_the_traceback_is_the_real_one() -> None:
    failure = _captured(KeyError("fare"), TransformError("map failed"))
    first, second = _rethrown(failure), _rethrown(failure)
    assert first is not second
    for error in (first, second):
        assert type(error) is TransformError
        assert error.__cause__ is failure.live.__cause__  # type: ignore[union-attr]
        assert error.__cause__ is not None
        frames = traceback.extract_tb(error.__cause__.__traceback__)
        assert frames[-1].name == "_user_function"


def test_a_failure_is_equal_to_its_copy() -> None:
    failure = _captured(KeyError("fare"), TransformError("map failed"))
    assert _sent(failure) == failure
