"""The exception tree: what a program may already catch, and what the texts say."""

from __future__ import annotations

import pickle

import pytest

from warrenmq.client import errors
from warrenmq.client.errors import CloseReason

REASON = CloseReason("server", 404, "NOT_FOUND - no queue 'q' in vhost '/'", 50, 10)


def test_every_error_is_a_client_error() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert all(issubclass(kind, errors.ClientError) for kind in kinds)


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.ConnectionFailed, ConnectionError),
        (errors.AuthenticationFailed, ConnectionError),
        (errors.ConnectionLost, ConnectionError),
        (errors.ConnectionClosed, ConnectionError),
        (errors.CallTimedOut, TimeoutError),
        (errors.ConnectionBlocked, TimeoutError),
        (errors.Misuse, ValueError),
    ],
)
def test_programs_may_catch_the_builtin(kind: type[Exception], builtin: type[Exception]) -> None:
    assert issubclass(kind, builtin)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (311, errors.ContentTooLarge),
        (403, errors.AccessRefused),
        (404, errors.NotFound),
        (405, errors.ResourceLocked),
        (406, errors.PreconditionFailed),
        (200, errors.ChannelClosed),
        (541, errors.ChannelClosed),
    ],
)
def test_a_channel_error_has_the_class_of_its_code(code: int, kind: type[Exception]) -> None:
    assert type(errors.channel_error(CloseReason("server", code, "text"))) is kind


def test_text_has_closer_reason_and_method() -> None:
    text = str(errors.channel_error(REASON))
    assert text == "closed by the server: 404 NOT_FOUND - no queue 'q' in vhost '/' (caused by queue.declare)"
    assert str(CloseReason("network")) == "closed by the network: no reason given"


@pytest.mark.parametrize(
    "error",
    [
        errors.channel_error(REASON),
        errors.ConnectionClosed(REASON),
        errors.ConnectionLost("lost", REASON),
        errors.ConnectionFailed("none answered", [("h:1", OSError("refused"))]),
        errors.ConsumerCancelled("tag"),
        errors.CallTimedOut("queue.declare: no answer in 3 s"),
    ],
)
def test_errors_travel_between_processes(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert getattr(copy, "reason", None) == getattr(error, "reason", None)
