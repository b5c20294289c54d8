"""amqp:// URLs: what each part means, what is refused, and that no password is ever shown."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warrenmq.client.errors import Misuse
from warrenmq.client.factory import ConnectionFactory
from warrenmq.client.url import OPTIONS, TlsFiles, format_url, parse_url


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("amqp://", ("localhost", 5672)),
        ("amqps://", ("localhost", 5671)),
        ("amqp://broker", ("broker", 5672)),
        ("AMQP://broker:1234/", ("broker", 1234)),
        ("amqp://:1234", ("localhost", 1234)),
        ("amqp://user@broker", ("broker", 5672)),
        ("amqp://user:password@10.0.0.1:99/vhost", ("10.0.0.1", 99)),
        ("amqp://[::1]", ("::1", 5672)),
        ("amqps://u:p@[fe80::1]:7000/v", ("fe80::1", 7000)),
        ("amqp://ho%61st", ("hoast", 5672)),
    ],
)
def test_the_address(url: str, address: tuple[str, int]) -> None:
    assert ConnectionFactory(url).addresses == (address,)


@pytest.mark.parametrize(
    ("url", "virtual_host"),
    [
        ("amqp://h", "/"),
        ("amqp://h/", "/"),  # the URI specification says "": see the module's docstring
        ("amqp://h/%2F", "/"),
        ("amqp://h/%2f", "/"),
        ("amqp://h/orders", "orders"),
        ("amqp://h/a%2Fb%20c", "a/b c"),
        ("amqp://h/%C3%BCber", "über"),
        ("amqp://h?heartbeat=5", "/"),
        ("amqp://h/?heartbeat=5", "/"),
    ],
)
def test_the_virtual_host(url: str, virtual_host: str) -> None:
    assert ConnectionFactory(url).virtual_host == virtual_host


def test_user_and_password_are_percent_decoded() -> None:
    factory = ConnectionFactory("amqp://us%3Aer:p%40ss%2Fw%23rd%25@h")
    assert (factory.username, factory.password) == ("us:er", "p@ss/w#rd%")


def test_what_is_left_out_is_the_default() -> None:
    factory = ConnectionFactory("amqp://h")
    assert (factory.username, factory.password, factory.heartbeat, factory.tls) == ("guest", "guest", 60, None)
    assert ConnectionFactory("amqp://anna@h").password == "guest"


def test_the_options() -> None:
    url = "amqp://h?heartbeat=5&connection_timeout=2500&name=my%20app&channel_max=7&frame_max=8192&auth_mechanism=amqplain"
    factory = ConnectionFactory(url)
    assert (factory.heartbeat, factory.connect_timeout, factory.name) == (5, 2.5, "my app")
    assert (factory.channel_max, factory.frame_max, factory.mechanism) == (7, 8192, "AMQPLAIN")


def test_the_options_of_tls() -> None:
    url = "amqps://h?cacertfile=/ca.pem&certfile=/c.pem&keyfile=/k.pem&verify=verify_none&server_name_indication=other"
    assert parse_url(url)["tls"] == TlsFiles("/ca.pem", "/c.pem", "/k.pem", False, "other")
    assert parse_url("amqps://h")["tls"] is True


def test_certificates_are_verified_by_default() -> None:
    checked = TlsFiles().context()
    assert (checked.verify_mode, checked.check_hostname) == (ssl.CERT_REQUIRED, True)
    unnamed = TlsFiles(server_name="disable").context()
    assert (unnamed.verify_mode, unnamed.check_hostname) == (ssl.CERT_REQUIRED, False)
    unchecked = TlsFiles(verify=False).context()
    assert (unchecked.verify_mode, unchecked.check_hostname) == (ssl.CERT_NONE, False)


def test_a_certificate_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="missing\\.pem"):
        TlsFiles(cacertfile=str(tmp_path / "missing.pem")).context()


def test_an_unknown_option_is_refused_with_the_known_ones() -> None:
    with pytest.raises(Misuse) as refusal:
        parse_url("amqp://h?hartbeat=5")
    assert "'hartbeat'" in str(refusal.value)
    assert all(name in str(refusal.value) for name in OPTIONS)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://h", "must start with amqp://"),
        ("localhost", "must start with amqp://"),
        ("amqp:h", "must start with amqp://"),
        ("", "must start with amqp://"),
        ("amqp://h:0", "port"),
        ("amqp://h:65536", "port"),
        ("amqp://h:amqp", "port"),
        ("amqp://[::1", "IPv6"),
        ("amqp://h/a/b", "%2F"),
        ("amqp://h/%FF", "UTF-8"),
        ("amqp://h#x", "%23"),
        ("amqp://h?heartbeat=-1", "heartbeat"),
        ("amqp://h?heartbeat=", "heartbeat"),
        ("amqp://h?heartbeat=5&heartbeat=6", "twice"),
        ("amqp://h?verify=verify_peer", "amqps"),
        ("amqps://h?verify=yes", "verify_peer or verify_none"),
        ("amqp://h?connection_timeout=0", "connection_timeout"),
        ("amqp://h?name=", "name"),
        ("amqp://h?auth_mechanism=digest", "plain"),
    ],
)
def test_invalid_url_is_refused(url: str, says: str) -> None:
    with pytest.raises(Misuse, match=says):
        parse_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "amqp://anna:hun#ter2@h",
        "amqp://anna:hun/ter2@h",
        "amqp://anna:hun?ter2@h",
        "amqp://anna:hun%FFter2@h",
        "anna:hunter2@h",
        "amqp://anna:hunter2@h:port",
        "amqp://anna:hunter2@[h",
        "amqp://anna:hunter2@h/a/b",
    ],
)
def test_a_refusal_shows_no_part_of_the_password(url: str) -> None:
    with pytest.raises(Misuse) as refusal:
        parse_url(url)
    assert "hun" not in str(refusal.value)
    assert "ter2" not in str(refusal.value)
    # and the traceback has no cause with the whole URL in it
    assert refusal.value.__cause__ is None
    assert refusal.value.__suppress_context__ or refusal.value.__context__ is None


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
VIRTUAL_HOSTS = NAMES.filter(lambda name: len(name.encode()) <= 255)  # more cannot be sent


@given(
    host=st.sampled_from(["broker", "10.0.0.1", "::1"]),
    port=st.integers(1, 65535),
    username=NAMES,
    password=NAMES,
    virtual_host=VIRTUAL_HOSTS,
    heartbeat=st.integers(0, 65535),
    name=st.none() | NAMES,
    connect_timeout=st.integers(1, 10**6).map(lambda milliseconds: milliseconds / 1000),
    tls=st.none()
    | st.just(True)
    | st.builds(TlsFiles, cacertfile=NAMES, verify=st.booleans(), server_name=st.none() | NAMES),
)
def test_there_and_back(**settings: object) -> None:
    factory = ConnectionFactory(**settings)  # type: ignore[arg-type]
    assert ConnectionFactory(format_url(factory, with_password=True)) == factory
