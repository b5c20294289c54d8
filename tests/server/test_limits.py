"""How descriptors are shared out, and what is counted and logged of refused connections."""

from __future__ import annotations

import logging
import resource

import pytest

from tests.support.dialogue import Dialogue
from tests.support.socketless import SocketlessServer
from warrenmq.server.limits import (
    HTTP,
    MAX_CONNECTIONS,
    UNAUTHENTICATED,
    UNLIMITED,
    ConnectionLimits,
    Refusals,
    divide_descriptors,
    open_file_limit,
)
from warrenmq.server.options import ServerOptions


@pytest.mark.parametrize(
    ("open_files", "asked", "amqp", "http"),
    [
        (1024, (None, None), 784, 112),
        (1 << 20, (None, None), (1 << 20) - 128 - 500, 500),
        (128, (None, None), 56, 8),
        (1024, (100, None), 100, 112),
        (1024, (None, 10), 886, 10),
        (1024, (5000, 5000), 448, 448),
        (8, (None, None), 3, 1),
    ],
)
def test_connections_get_what_the_storage_leaves(
    open_files: int, asked: tuple[int | None, int | None], amqp: int, http: int
) -> None:
    assert divide_descriptors(open_files, *asked) == ConnectionLimits(amqp, http)


def test_half_of_the_connections_may_be_unauthenticated_and_at_least_one() -> None:
    assert [ConnectionLimits(amqp, 1).unauthenticated for amqp in (1, 2, 3, 100)] == [1, 1, 1, 50]


def test_a_process_without_a_limit_has_one_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert open_file_limit() == UNLIMITED


def test_a_reason_is_logged_once_a_minute_with_the_count_since(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    refusals = Refusals(lambda: now)
    with caplog.at_level(logging.WARNING):
        for now in (0.0, 1.0, 59.0, 60.0, 61.0):  # noqa: B007 - the clock reads it
            refusals.record(MAX_CONNECTIONS)
        refusals.record(HTTP)
    assert [line.getMessage() for line in caplog.records] == [
        "connections refused: 1 (max_connections reached)",
        "connections refused: 3 (max_connections reached)",
        "connections refused: 1 (max_http_connections reached)",
    ]
    assert refusals.counts == {MAX_CONNECTIONS: 5, UNAUTHENTICATED: 0, HTTP: 1}


def test_a_connection_counts_as_unauthenticated_until_it_has_opened_a_virtual_host_or_is_gone() -> None:
    server = SocketlessServer(ServerOptions(max_connections=4))
    first, second = Dialogue(server), Dialogue(server)
    first.start()  # logged in, and no further
    assert not server.admit()
    assert server.refusals.counts[UNAUTHENTICATED] == 1
    second.line.hang_up()
    assert server.admit()
    Dialogue(server).open()
    Dialogue(server).open()
    assert server.admit()
    Dialogue(server).open()
    assert not server.admit()
    assert server.refusals.counts[MAX_CONNECTIONS] == 1
