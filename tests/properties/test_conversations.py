"""A client that says almost the right thing: the server stays well, and so do its other clients."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.properties.test_chunking import cut_up, cuts, damages
from tests.support.bystander import attack, frames_of
from tests.support.conversations import CONVERSATIONS, Edit, EditKind, apply_edits, handshake, method, publish
from tests.support.socketless import SocketlessServer
from tests.support.wire_format import BODY, METHOD, Frame, read_method
from warrenmq.server.connection import ConnectionState


def test_the_undamaged_conversations_end_well() -> None:
    for conversation in CONVERSATIONS:
        frames = frames_of(attack(apply_edits(conversation, [])))
        answers = [read_method(frame).name for frame in frames if frame.kind == METHOD]
        assert answers[-1] == "connection.close-ok"
        assert "channel.close" not in answers
        assert "connection.close" not in answers


@settings(max_examples=300)
@given(st.sampled_from(CONVERSATIONS), st.lists(damages, min_size=1, max_size=6))
def test_damaged_conversations_do_no_harm(conversation: list[Frame], edits: list[Edit]) -> None:
    attack(apply_edits(conversation, edits))


@given(st.sampled_from(CONVERSATIONS), st.lists(damages, min_size=1, max_size=6), cuts)
def test_damaged_conversations_cut_anywhere_do_no_harm(
    conversation: list[Frame], edits: list[Edit], places: list[int]
) -> None:
    attack(cut_up(b"".join(apply_edits(conversation, edits)), places))


@settings(max_examples=200)
@given(
    st.sampled_from(CONVERSATIONS),
    st.lists(
        damages.filter(lambda edit: edit.kind in (EditKind.SET_BYTE, EditKind.INSERT_BYTE, EditKind.REMOVE_BYTE)),
        min_size=1,
        max_size=3,
    ),
)
def test_damaged_arguments_do_no_harm(conversation: list[Frame], edits: list[Edit]) -> None:
    attack(apply_edits(conversation, edits))


@given(st.sampled_from(CONVERSATIONS), st.integers(0, 1000))
def test_a_client_may_vanish_anywhere(conversation: list[Frame], place: int) -> None:
    pieces = apply_edits(conversation, [])
    attack(pieces[: place % len(pieces)])


@given(st.sampled_from([9, BODY]), st.integers(0, 1000))
def test_a_clients_close_ok_is_read_however_it_is_split(mistaken_kind: int, place: int) -> None:
    """A mistake that leaves the framing whole costs neither side its place in the stream."""
    line = SocketlessServer().connect()
    mistake = [*handshake(), *method(1, "channel.open"), Frame(mistaken_kind, 1, b"mistake")]
    more = [*publish(1, b"x" * 150, routing_key="q"), *method(0, "connection.close-ok")]
    before, behind = b"".join(apply_edits(mistake, [])), b"".join(apply_edits(more, [])[1:])
    cut = place % len(behind)
    line.send(before + behind[:cut])
    assert not line.is_closed
    line.send(behind[cut:], ends_turn=False)
    assert line.connection.state is ConnectionState.FLUSHING, "the closing handshake is complete"
    assert line.is_closed
