"""The settings of a connection: what overrides what, what is refused, what is never shown."""

from __future__ import annotations

import asyncio
import pickle
import ssl
from typing import Any

import pytest

from warrenmq.client.errors import Misuse
from warrenmq.client.factory import ConnectionFactory, Recovery, as_factory
from warrenmq.client.url import TlsFiles
from warrenmq.protocol.handshake import Tuning
from warrenmq.protocol.values import decode_table


def test_the_defaults_are_those_of_the_ecosystem() -> None:
    factory = ConnectionFactory()
    assert factory.addresses == (("localhost", 5672),)
    assert (factory.virtual_host, factory.username, factory.password) == ("/", "guest", "guest")
    assert factory.requested_tuning() == Tuning(0, 131072, 60)
    assert factory.recovery.enabled
    assert factory.recovery.topology


def test_what_is_given_by_name_overrides_the_url() -> None:
    factory = ConnectionFactory("amqp://anna:secret@h:99/v?heartbeat=5", heartbeat=9, host="other", password="new")
    assert (factory.host, factory.port, factory.heartbeat, factory.password) == ("other", 99, 9, "new")
    assert (factory.username, factory.virtual_host) == ("anna", "v")


@pytest.mark.parametrize(
    ("settings", "address"),
    [
        ({}, ("localhost", 5672)),
        ({"tls": True}, ("localhost", 5671)),
        ({"tls": True, "port": 5672}, ("localhost", 5672)),
        ({"host": "h"}, ("h", 5672)),
        ({"host": "h", "tls": True}, ("h", 5671)),
        ({"url": "amqps://h"}, ("h", 5671)),
        ({"url": "amqp://h", "tls": True}, ("h", 5671)),
        ({"url": "amqp://localhost:5672", "tls": True}, ("localhost", 5672)),
        ({"url": "amqps://h", "tls": False}, ("h", 5672)),
        ({"url": "amqp://h", "host": "i", "port": 7}, ("i", 7)),
        ({"addresses": ["h"]}, ("h", 5672)),
        ({"addresses": ["h"], "tls": True}, ("h", 5671)),
        ({"addresses": ["h:7"]}, ("h", 7)),
        ({"addresses": ["[::1]:7"]}, ("::1", 7)),
        ({"addresses": ["[::1]"]}, ("::1", 5672)),
        ({"addresses": ["::1"]}, ("::1", 5672)),
        ({"addresses": [("h", 8), "i:9"]}, ("h", 8)),
    ],
)
def test_the_address(settings: dict[str, Any], address: tuple[str, int]) -> None:
    factory = ConnectionFactory(**settings)
    assert (factory.host, factory.port) == address


def test_several_urls_are_addresses_in_their_order() -> None:
    factory = ConnectionFactory(["amqp://u:p@b:1/v", "amqp://u:p@a/v"])
    assert factory.addresses == (("b", 1), ("a", 5672))
    with pytest.raises(Misuse, match="differ"):
        ConnectionFactory(["amqp://u:p@b/v", "amqp://u:p@a/w"])
    with pytest.raises(Misuse, match="URLs is empty"):
        ConnectionFactory([])


def test_with_changes_one_thing_and_keeps_the_rest() -> None:
    factory = ConnectionFactory(["amqps://u:p@a:1/v?heartbeat=5", "amqps://u:p@b:2/v?heartbeat=5"], name="n")
    changed = factory.with_(virtual_host="w")
    assert changed == ConnectionFactory(["amqps://u:p@a:1/w?heartbeat=5", "amqps://u:p@b:2/w?heartbeat=5"], name="n")
    assert factory.with_(port=7).addresses == (("a", 7), ("b", 2))
    assert factory.with_() == factory
    assert factory.virtual_host == "v"


def test_with_keeps_the_port_that_was_named() -> None:
    assert ConnectionFactory(host="h", port=5672).with_(heartbeat=1).port == 5672
    assert ConnectionFactory("amqps://h:5671").with_(heartbeat=1).port == 5671


def test_a_factory_does_not_change() -> None:
    factory = ConnectionFactory()
    with pytest.raises(AttributeError):
        factory.heartbeat = 1  # type: ignore[misc]


def test_what_connect_takes() -> None:
    factory = ConnectionFactory(heartbeat=3)
    assert as_factory(factory, {}) is factory
    assert as_factory(factory, {"name": "n"}) == ConnectionFactory(heartbeat=3, name="n")
    assert as_factory("amqp://h", {"name": "n"}) == ConnectionFactory(host="h", name="n")
    assert as_factory(None, {}) == ConnectionFactory()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"hots": "h"}, "hots"),
        ({"host": ""}, "host"),
        ({"port": 0}, "port"),
        ({"port": "5672"}, "port"),
        ({"addresses": []}, "no address"),
        ({"addresses": ["h:x"]}, "host:port"),
        ({"addresses": ["h"], "host": "i"}, "not both"),
        ({"mechanism": "plain"}, "PLAIN, AMQPLAIN, EXTERNAL"),
        ({"unconfirmed": "drop"}, "'fail' or 'resend'"),
        ({"heartbeat": -1}, "heartbeat"),
        ({"heartbeat": 65536}, "heartbeat"),
        ({"frame_max": 4095}, "frame_max"),
        ({"channel_max": 65536}, "channel_max"),
        ({"call_timeout": 0}, "call_timeout"),
        ({"call_timeout": float("inf")}, "call_timeout"),
        ({"connect_timeout": float("nan")}, "connect_timeout"),
        ({"work_limit": 0}, "work_limit"),
        ({"recovery": 3}, "recovery"),
        ({"heartbeat": 0.5}, "integer"),
        ({"call_timeout": None}, "call_timeout"),
        ({"virtual_host": "v" * 256}, "255"),
        ({"virtual_host": None}, "virtual_host must be a str"),
        ({"username": "\ud800"}, "UTF-8"),
        ({"name": 7}, "name must be a str"),
        ({"tls": "yes"}, "tls"),
        ({"exception_handler": "print"}, "exception_handler"),
        ({"client_properties": {"x": object()}}, "client properties"),
        ({"client_properties": {"k" * 300: 1}}, "client properties"),
    ],
)
def test_invalid_option_is_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(Misuse, match=says):
        ConnectionFactory(**settings)


@pytest.mark.parametrize("settings", [{"initial": -1}, {"factor": 0.5}, {"jitter": 2}, {"attempts": 0}])
def test_invalid_recovery_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(Misuse, match="recovery"):
        Recovery(**settings)


def test_recovery_may_be_a_bool() -> None:
    assert ConnectionFactory(recovery=False).recovery == Recovery(enabled=False)
    assert ConnectionFactory(recovery=True).recovery == Recovery()
    backoff = Recovery(initial=3, jitter=0).backoff()
    assert (backoff.next(), backoff.next()) == (3, 6)


def test_the_password_is_never_shown() -> None:
    factory = ConnectionFactory("amqp://anna:hunter2@h/v", addresses=["a", "b"])
    assert repr(factory) == "<ConnectionFactory amqp://anna@a:5672/v and 1 more>"
    assert "hunter2" not in f"{factory} {factory.url()}"


def test_a_password_of_the_wrong_type_is_not_shown() -> None:
    with pytest.raises(Misuse) as refusal:
        ConnectionFactory(password=b"hunter2")  # type: ignore[arg-type]
    assert str(refusal.value) == "password must be a str, not bytes"


def test_what_proves_who_we_are() -> None:
    factory = ConnectionFactory(username="ännä", password="p")
    assert factory.sasl_response() == b"\0\xc3\xa4nn\xc3\xa4\0p"
    assert factory.with_(mechanism="EXTERNAL").sasl_response() == b""
    response = factory.with_(mechanism="AMQPLAIN").sasl_response()
    table, _ = decode_table(len(response).to_bytes(4, "big") + response, 0, len(response) + 4)
    assert table == {"LOGIN": "ännä", "PASSWORD": "p"}


def test_client_properties_sent_to_the_server() -> None:
    assert ConnectionFactory().all_client_properties()["product"] == "WarrenMQ client"
    assert "connection_name" not in ConnectionFactory().all_client_properties()
    sent = ConnectionFactory(name="billing", client_properties={"product": "Mine", "x": 1}).all_client_properties()
    assert (sent["connection_name"], sent["product"], sent["x"]) == ("billing", "Mine", 1)


def test_tls_contexts_and_names() -> None:
    plain = ConnectionFactory()
    assert (plain.tls_context(), plain.tls_name("h")) == (None, None)
    own = ssl.create_default_context()
    assert ConnectionFactory(tls=own).tls_context() is own
    assert ConnectionFactory(tls=own).tls_name("h") == "h"
    assert ConnectionFactory(tls=True).tls_context() is not None
    assert ConnectionFactory(tls=TlsFiles(server_name="n")).tls_name("h") == "n"
    assert ConnectionFactory(tls=TlsFiles(server_name="disable")).tls_name("h") == ""


def test_a_factory_travels_between_processes() -> None:
    factory = ConnectionFactory("amqps://u:p@h/v?verify=verify_none")
    assert pickle.loads(pickle.dumps(factory)) == factory


def test_a_factory_opens_both_faces(broker_url: str) -> None:
    factory = ConnectionFactory(broker_url, name="both")
    with factory.connect() as connection:
        assert connection.channel().queue_declare(exclusive=True).message_count == 0

    async def open_async() -> int:
        async with await factory.connect_async() as connection:
            channel = await connection.channel()
            return (await channel.queue_declare(exclusive=True)).message_count

    assert asyncio.run(open_async()) == 0
