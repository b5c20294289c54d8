"""The rate limit of password guesses, and the clients that it must not affect."""

from __future__ import annotations

import pytest

from warrenmq.core import login_limit
from warrenmq.core.login_limit import Attempt, LoginLimit, TooManyFailures, network_of


class Clock:
    """Drives a limit: each login waits as long as it has to."""

    def __init__(self, **limits: int) -> None:
        self.limit = LoginLimit(**limits)
        self.now = 1000.0

    def begin(self, address: str = "192.0.2.7", user: str = "app", password: str = "x") -> Attempt:
        return self.limit.begin(address, user, password, self.now)

    def fail(self, address: str = "192.0.2.7", user: str = "app", password: str = "x") -> float:
        """Try a wrong password; the seconds that the refusal took."""
        attempt = self.begin(address, user, password)
        self.now += attempt.wait
        self.limit.end(attempt, False)
        return attempt.wait

    def succeed(self, address: str = "192.0.2.7", user: str = "app", password: str = "right") -> float:
        attempt = self.begin(address, user, password)
        self.now += attempt.wait
        self.limit.end(attempt, True)
        return attempt.wait

    def exhaust(self, address: str = "192.0.2.7", user: str = "app") -> None:
        """Fill the limit of the pair, and both places to wait."""
        for number in range(12):
            self.begin(address, user, f"guess {number}")
        with pytest.raises(TooManyFailures):
            self.begin(address, user, "one more")


def test_a_few_wrong_passwords_are_refused_at_once_then_one_every_two_seconds() -> None:
    clock = Clock()
    waits = [clock.fail(password=str(number)) for number in range(15)]
    assert waits == [0.0] * 10 + [2.0] * 5


def test_guessing_on_many_connections_at_once_is_no_faster() -> None:
    clock = Clock()
    clock.exhaust()  # ten at once, and two that wait
    for number in range(4000):
        with pytest.raises(TooManyFailures, match="try again in 2 s"):
            clock.begin(password=str(number))
    assert clock.limit.refused == 4001


def test_the_right_password_gets_in_after_the_wait() -> None:
    clock = Clock()
    clock.exhaust()
    clock.now += 2
    assert 0 < clock.succeed() <= 5


def test_the_limit_clears_with_time() -> None:
    clock = Clock()
    clock.exhaust()
    clock.now += 60
    assert [clock.fail(password=f"later {number}") for number in range(10)] == [0.0] * 10


def test_a_login_that_succeeds_uses_up_nothing() -> None:
    clock = Clock()
    assert [clock.succeed() for _ in range(50)] == [0.0] * 50
    assert (clock.limit.failed, clock.limit.refused) == (0, 0)


def test_a_client_that_disconnects_before_its_password_is_checked_does_not_count() -> None:
    clock = Clock()
    for number in range(10):
        clock.fail(password=str(number))
    for number in range(100):
        attempt = clock.begin(password=f"gone {number}")
        assert attempt.wait == 2.0
        clock.limit.end(attempt, None)
    assert clock.limit.failed == 10


def test_guessing_from_one_address_does_not_keep_the_user_out_elsewhere() -> None:
    clock = Clock()
    clock.exhaust("198.51.100.1", "app")
    assert clock.succeed("192.0.2.7", "app") == 0.0


def test_guessing_one_user_does_not_keep_others_out_at_the_same_address() -> None:
    clock = Clock()
    clock.exhaust("192.0.2.7", "app")
    assert clock.succeed("192.0.2.7", "other") == 0.0


def test_an_address_that_tries_many_users_is_limited() -> None:
    clock = Clock()
    waits = [clock.fail(user=f"user {number}") for number in range(102)]
    assert waits == [0.0] * 100 + [2.0] * 2
    assert clock.succeed("198.51.100.1", "another") == 0.0


def test_guessing_one_user_from_many_addresses_makes_unknown_addresses_wait_and_never_refuses_them() -> None:
    clock = Clock()
    waits = [clock.begin(f"198.51.{n // 250}.{n % 250}", password=str(n)).wait for n in range(500)]
    assert waits[:100] == [0.0] * 100
    assert max(waits) == 5.0
    assert clock.succeed("203.0.113.9") == 5.0


def test_a_user_who_logged_in_from_an_address_before_is_not_slowed_by_guessing_elsewhere() -> None:
    clock = Clock()
    clock.succeed("203.0.113.9")
    for number in range(500):
        clock.begin(f"198.51.{number // 250}.{number % 250}", password=str(number))
    assert clock.succeed("203.0.113.9") == 0.0


def test_a_user_who_logged_in_from_an_address_before_is_not_slowed_by_other_names_tried_there() -> None:
    clock = Clock()
    clock.succeed(user="app")
    for number in range(102):
        clock.begin(user=f"user {number}")
    with pytest.raises(TooManyFailures):
        clock.begin(user="another")
    assert clock.succeed(user="app") == 0.0


def test_the_password_that_logged_in_from_an_address_before_gets_in_at_once_while_others_guess_there() -> None:
    clock = Clock()
    clock.succeed()
    clock.exhaust()
    assert clock.succeed() == 0.0
    with pytest.raises(TooManyFailures):
        clock.begin(password="one more guess")


def test_a_password_that_was_changed_is_a_wrong_one() -> None:
    clock = Clock()
    clock.succeed(password="old")
    assert [clock.fail(password="old"), clock.fail(password="old")] == [0.0, 2.0]


def test_clients_that_retry_an_old_password_do_not_keep_out_those_that_have_the_new_one() -> None:
    clock = Clock()
    waits = [clock.fail(password="old") for _ in range(100)]
    assert waits == [0.0] + [2.0] * 99
    assert clock.succeed(password="new") == 0.0


def test_a_password_that_was_wrong_is_welcome_once_it_is_right() -> None:
    clock = Clock()
    clock.fail(password="too early")
    assert clock.succeed(password="too early") == 2.0
    assert clock.succeed(password="too early") == 0.0


def test_the_number_of_logins_that_wait_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_limit, "MAX_WAITING", 3)
    clock = Clock(for_user=1)
    clock.fail(password="old")
    waiting = [clock.begin(password="old") for _ in range(3)]
    with pytest.raises(TooManyFailures):
        clock.begin(password="old")
    others = [clock.begin(f"198.51.100.{number}", password=str(number)) for number in range(3)]
    with pytest.raises(TooManyFailures):
        clock.begin("198.51.100.99", password="another")
    for attempt in waiting + others:
        clock.limit.end(attempt, None)
    assert clock.begin(password="old").wait == 2.0


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_limit, "MAX_KEYS", 10)
    clock = Clock()
    for number in range(100):
        clock.fail(f"198.51.100.{number}", f"user {number}" * 1000)
        clock.succeed(f"198.51.100.{number}", f"other {number}")
    limit = clock.limit
    kept = (limit._right, limit._wrong, limit._pairs._cleared_at, limit._users._cleared_at)
    assert [len(each) for each in kept] == [10] * 4


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("192.0.2.7", "192.0.2.8", False),
        ("192.0.2.7", "::ffff:192.0.2.7", True),
        ("2001:db8::1", "2001:db8::ffff:ffff:ffff:ffff", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2", True),
        ("", "127.0.0.1", False),
        ("not an address", "not an address", True),
    ],
)
def test_an_ipv6_client_cannot_change_its_address_within_its_network(one: str, other: str, is_same: bool) -> None:
    assert (network_of(one) == network_of(other)) == is_same


def test_any_password_can_be_tried() -> None:
    clock = Clock()
    assert [clock.fail(password=text) for text in ("\ud800", "\udc80", "", "x" * 100_000)] == [0.0] * 4
