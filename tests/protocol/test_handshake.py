"""Both sides of the handshake against each other, and every wrong order."""

from typing import Any

import pytest

from warrenmq.protocol import spec
from warrenmq.protocol.errors import ChannelError, LocalMisuse, NotAllowed
from warrenmq.protocol.handshake import CAPABILITIES, ClientHandshake, ServerHandshake, State, Tuning

OFFER = Tuning(channel_max=2047, frame_max=131072, heartbeat=60)
START = spec.ConnectionStart(server_properties={"product": "x"}, mechanisms=b"AMQPLAIN PLAIN")
START_OK = spec.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest")
TUNE = spec.ConnectionTune(2047, 131072, 60)
TUNE_OK = spec.ConnectionTuneOk(2047, 131072, 60)
OPEN = spec.ConnectionOpen("/")
OPEN_OK = spec.ConnectionOpenOk()


def client(wanted: Tuning | None = None, **settings: Any) -> ClientHandshake:
    return ClientHandshake("PLAIN", b"\0guest\0guest", wanted=wanted, **settings)


def shake_hands(us: ClientHandshake, them: ServerHandshake) -> str:
    """Run both sides; return the virtual host that was opened."""
    (start_ok,) = us.receive(START)
    them.start_ok(start_ok)
    tune_ok, opening = us.receive(them.authenticated())
    them.tune_ok(tune_ok)
    vhost = them.open(opening)
    assert us.receive(them.opened()) == []
    return vhost


@pytest.mark.parametrize(
    ("wanted", "offer", "agreed"),
    [
        (None, OFFER, Tuning(2047, 131072, 60)),
        (Tuning(10, 4096, 5), OFFER, Tuning(10, 4096, 5)),
        (Tuning(65535, 2**31, 600), OFFER, Tuning(2047, 131072, 60)),
        (Tuning(0, 0, 0), OFFER, Tuning(2047, 131072, 0)),
        (Tuning(0, 0, 30), Tuning(0, 0, 0), Tuning(65535, 131072, 30)),
        (Tuning(100, 8192, 30), Tuning(0, 0, 0), Tuning(100, 8192, 30)),
    ],
    ids=["default", "less", "more", "no limits", "neither side has limits", "only the client has"],
)
def test_both_sides_agree(wanted: Tuning | None, offer: Tuning, agreed: Tuning) -> None:
    us, them = client(wanted, virtual_host="v"), ServerHandshake(offer)
    assert shake_hands(us, them) == "v"
    assert us.is_done
    assert us.tuning == them.tuning == agreed
    assert them.state is State.RUNNING


def test_each_side_receives_the_properties_of_the_other() -> None:
    us, them = client(client_properties={"product": "test"}), ServerHandshake(OFFER)
    shake_hands(us, them)
    assert us.server_properties == {"product": "x"}
    assert them.client_properties == {"product": "test", "capabilities": CAPABILITIES}
    assert them.capabilities == CAPABILITIES


def test_capabilities_that_are_no_table_are_none() -> None:
    them = ServerHandshake(OFFER)
    them.start_ok(spec.ConnectionStartOk({"capabilities": "all"}, "PLAIN", b""))
    assert them.capabilities == {}


# -- the client's refusals -----------------------------------------------------------------------------------------

IN_ORDER = [START, TUNE, OPEN_OK]
STEPS = {0: [START], 1: [TUNE], 2: [OPEN_OK], 3: []}
SERVER_METHODS = [START, spec.ConnectionSecure(b""), TUNE, OPEN_OK, spec.ChannelOpenOk(), spec.ConnectionUnblocked()]


@pytest.mark.parametrize("done", STEPS)
@pytest.mark.parametrize("method", SERVER_METHODS, ids=lambda method: method.name)
def test_the_client_takes_nothing_but_the_next_method(done: int, method: spec.Method) -> None:
    us = client()
    for earlier in IN_ORDER[:done]:
        us.receive(earlier)
    if method in STEPS[done]:
        us.receive(method)
        return
    with pytest.raises(ChannelError, match=f"unexpected method {method.name}"):
        us.receive(method)


@pytest.mark.parametrize("mechanisms", [b"", b"AMQPLAIN", b"PLAINTEXT EXTERNAL"])
def test_the_client_refuses_a_server_without_its_mechanism(mechanisms: bytes) -> None:
    with pytest.raises(NotAllowed, match="PLAIN"):
        client().receive(spec.ConnectionStart(mechanisms=mechanisms))


@pytest.mark.parametrize("frame_max", [1, 8, 4095])
def test_no_side_may_want_frames_below_the_protocols_least(frame_max: int) -> None:
    with pytest.raises(LocalMisuse):
        client(Tuning(0, frame_max, 0))
    us = client()
    us.receive(START)
    with pytest.raises(NotAllowed, match=str(frame_max)):
        us.receive(spec.ConnectionTune(0, frame_max, 0))


# -- the server's refusals -----------------------------------------------------------------------------------------


def server_in(state: State) -> ServerHandshake:
    them = ServerHandshake(OFFER)
    if state is not State.STARTING:
        them.start_ok(START_OK)
        them.authenticated()
    if state in (State.OPENING, State.RUNNING):
        them.tune_ok(TUNE_OK)
    if state is State.RUNNING:
        them.open(OPEN)
        them.opened()
    return them


CLIENT_METHODS = [START_OK, TUNE_OK, OPEN, spec.ConnectionSecureOk(b""), spec.ChannelOpen(), spec.ConnectionCloseOk()]
DUE = {State.STARTING: START_OK, State.TUNING: TUNE_OK, State.OPENING: OPEN, State.RUNNING: None}


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("step", ["start_ok", "tune_ok", "open"])
@pytest.mark.parametrize("method", CLIENT_METHODS, ids=lambda method: method.name)
def test_the_server_takes_nothing_but_the_next_method(state: State, step: str, method: spec.Method) -> None:
    them = server_in(state)
    steps = {"start_ok": State.STARTING, "tune_ok": State.TUNING, "open": State.OPENING}
    if steps[step] is state and method is DUE[state]:
        getattr(them, step)(method)
        return
    with pytest.raises(ChannelError, match=f"unexpected method in connection state {state.value}") as caught:
        getattr(them, step)(method)
    assert caught.value.class_id << 16 | caught.value.method_id == method.index
    assert them.state is state


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (spec.ConnectionTuneOk(2048, 131072, 60), "negotiated channel_max = 2048 is above the allowed 2047"),
        (spec.ConnectionTuneOk(0, 131072, 60), "negotiated channel_max = 0 is above the allowed 2047"),
        (spec.ConnectionTuneOk(2047, 131073, 60), "negotiated frame_max = 131073 is above the allowed 131072"),
        (spec.ConnectionTuneOk(2047, 0, 60), "negotiated frame_max = 0 is above the allowed 131072"),
        (spec.ConnectionTuneOk(2047, 4095, 60), "negotiated frame_max = 4095 is below the allowed 4096"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_client_may_not_ask_for_more_than_was_offered(answer: spec.ConnectionTuneOk, text: str) -> None:
    them = server_in(State.TUNING)
    with pytest.raises(NotAllowed) as caught:
        them.tune_ok(answer)
    assert caught.value.text == text
    assert them.state is State.TUNING


@pytest.mark.parametrize("heartbeat", [0, 1, 65535])
def test_client_chooses_the_heartbeat(heartbeat: int) -> None:
    assert server_in(State.TUNING).tune_ok(spec.ConnectionTuneOk(1, 4096, heartbeat)).heartbeat == heartbeat
