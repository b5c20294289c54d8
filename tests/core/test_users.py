"""Users: passwords and permissions."""

from __future__ import annotations

import pytest

from warrenmq.core.errors import AccessRefused
from warrenmq.core.users import Users


@pytest.fixture
def users() -> Users:
    users = Users()
    users.add("alice", "secret")
    return users


def allowed(users: Users, action: str, kind: str, name: str, vhost: str = "/") -> bool:
    try:
        users.require("alice", vhost, action, kind, name)
    except AccessRefused:
        return False
    return True


def test_only_the_right_password_is_accepted(users: Users) -> None:
    assert users.authenticate("alice", "secret")
    for name, password in (("alice", "Secret"), ("alice", ""), ("bob", "secret"), ("", "")):
        assert not users.authenticate(name, password)


def test_passwords_of_any_letters_are_fine(users: Users) -> None:
    users.add("zoë", "пароль \0 🐇")
    assert users.authenticate("zoë", "пароль \0 🐇")
    assert not users.authenticate("zoë", "пароль")


def test_bytes_that_are_no_text_are_a_wrong_password_not_an_error(users: Users) -> None:
    assert not users.authenticate("alice", b"\xff\xfe".decode("utf-8", "surrogateescape"))
    assert not users.authenticate(b"\xff".decode("utf-8", "surrogateescape"), "secret")


def test_a_new_password_replaces_the_old_one_and_keeps_the_permissions(users: Users) -> None:
    users.grant("alice", "/", ".*", ".*", ".*")
    users.add("alice", "new")
    assert users.authenticate("alice", "new")
    assert not users.authenticate("alice", "secret")
    assert users.may_enter("alice", "/")


def test_a_removed_user_can_do_nothing(users: Users) -> None:
    users.grant("alice", "/", ".*", ".*", ".*")
    users.remove("alice")
    assert not users.exists("alice")
    assert not users.authenticate("alice", "secret")
    assert not users.may_enter("alice", "/")
    assert not allowed(users, "read", "queue", "q")


def test_without_a_permission_nothing_is_allowed(users: Users) -> None:
    assert not users.may_enter("alice", "/")
    assert not allowed(users, "read", "queue", "q")


def test_each_action_has_its_own_pattern(users: Users) -> None:
    users.grant("alice", "/", "^mine$", "^out", "in$")
    assert [allowed(users, action, "queue", "mine") for action in ("configure", "write", "read")] == [
        True,
        False,
        False,
    ]
    assert [allowed(users, action, "queue", "out.1") for action in ("configure", "write", "read")] == [
        False,
        True,
        False,
    ]
    assert [allowed(users, action, "queue", "1.in") for action in ("configure", "write", "read")] == [
        False,
        False,
        True,
    ]


def test_a_pattern_matches_anywhere_unless_it_is_anchored(users: Users) -> None:
    users.grant("alice", "/", "log", "^log$", "")
    assert allowed(users, "configure", "queue", "my.logs")
    assert not allowed(users, "write", "queue", "my.logs")
    assert allowed(users, "write", "queue", "log")


def test_an_empty_pattern_matches_nothing_but_the_empty_name(users: Users) -> None:
    users.grant("alice", "/", "", "", "")
    assert users.may_enter("alice", "/")
    assert allowed(users, "configure", "queue", "")
    assert not allowed(users, "configure", "queue", "q")


def test_the_default_exchange_has_a_name_of_its_own_here(users: Users) -> None:
    users.grant("alice", "/", "", "^amq\\.default$", "")
    assert allowed(users, "write", "exchange", "")
    assert not allowed(users, "write", "exchange", "amq.direct")


def test_a_permission_of_one_virtual_host_says_nothing_of_another(users: Users) -> None:
    users.grant("alice", "/", ".*", ".*", ".*")
    assert allowed(users, "read", "queue", "q")
    assert not allowed(users, "read", "queue", "q", vhost="a")


def test_a_permission_of_the_virtual_host_overrides_the_general_one(users: Users) -> None:
    users.grant("alice", None, ".*", ".*", ".*")
    users.grant("alice", "a", "", "", "")
    assert allowed(users, "read", "queue", "q", vhost="b")
    assert not allowed(users, "read", "queue", "q", vhost="a")


def test_the_refusal_names_user_resource_and_virtual_host(users: Users) -> None:
    with pytest.raises(AccessRefused) as refusal:
        users.require("alice", "/", "write", "exchange", "")
    assert refusal.value.reply_text == (
        "ACCESS_REFUSED - write access to exchange 'amq.default' in vhost '/' refused for user 'alice'"
    )
