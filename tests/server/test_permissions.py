"""Permissions of open channels: a change counts from the next publish on."""

from __future__ import annotations

import pytest

from tests.support.dialogue import Dialogue
from tests.support.socketless import SocketlessServer
from warrenmq.core.errors import AccessRefused
from warrenmq.core.users import EVERYTHING, Users


@pytest.fixture
def server() -> SocketlessServer:
    return SocketlessServer()


@pytest.fixture
def client(server: SocketlessServer) -> Dialogue:
    client = Dialogue(server).open()
    client.say("queue.declare", 1, queue="q")
    client.publish(b"1", "q")
    assert client.hear() == ["queue.declare-ok"]
    return client


def assert_refused(client: Dialogue) -> None:
    (close,) = client.methods()
    assert close.name == "channel.close"
    assert close["reply_text"] == (
        "ACCESS_REFUSED - write access to exchange 'amq.default' in vhost '/' refused for user 'guest'"
    )


def test_a_permission_that_is_taken_away_counts_for_the_next_publish(
    server: SocketlessServer, client: Dialogue
) -> None:
    server.broker.users.grant("guest", None, EVERYTHING, "^$", EVERYTHING)
    client.publish(b"2", "q")
    assert_refused(client)
    assert len(server.broker.vhosts["/"].queues["q"].backlog) == 1


def test_a_user_that_is_removed_publishes_no_more(server: SocketlessServer, client: Dialogue) -> None:
    server.broker.users.remove("guest")
    client.publish(b"2", "q")
    assert_refused(client)


def test_a_change_that_concerns_others_changes_nothing(server: SocketlessServer, client: Dialogue) -> None:
    server.broker.users.add("somebody", "else")
    client.publish(b"2", "q")
    server.broker.users.grant("guest", "/", EVERYTHING, EVERYTHING, EVERYTHING)
    client.publish(b"3", "q")
    assert client.hear() == []
    assert len(server.broker.vhosts["/"].queues["q"].backlog) == 3


def test_every_change_has_its_own_revision() -> None:
    users = Users()
    seen = [users.revision.number]
    users.add("alice", "1")
    seen.append(users.revision.number)
    users.grant("alice", "/", "", "", "")
    seen.append(users.revision.number)
    users.grant("alice", None, "", "", "")
    seen.append(users.revision.number)
    users.remove("alice")
    seen.append(users.revision.number)
    assert len(set(seen)) == len(seen)


class CountingUsers(Users):
    """Counts decisions; with topic permissions, a user may publish with some keys only."""

    def __init__(self, has_topic_permissions: bool) -> None:
        super().__init__()
        self.decisions = 0
        self._has_topic_permissions = has_topic_permissions

    def require_publish(self, name: str, vhost: str, exchange: str, routing_key: str) -> bool:
        self.decisions += 1
        super().require_publish(name, vhost, exchange, routing_key)
        if routing_key == "forbidden":
            raise AccessRefused("not with that key")
        return not self._has_topic_permissions


@pytest.mark.parametrize(("has_topic_permissions", "decisions"), [(False, 1), (True, 5)])
def test_a_user_with_topic_permissions_is_asked_about_for_every_publish(
    server: SocketlessServer, has_topic_permissions: bool, decisions: int
) -> None:
    users = server.broker.users = CountingUsers(has_topic_permissions)
    users.add("guest", "guest")
    users.grant("guest", None, EVERYTHING, EVERYTHING, EVERYTHING)
    server.authenticator._users = users
    client = Dialogue(server).open()
    for _ in range(5):
        client.publish(b"", "k")
    assert users.decisions == decisions
    client.publish(b"", "forbidden")
    assert client.hear() == (["channel.close"] if has_topic_permissions else [])
