"""Every publish of a confirming channel is answered once, rightly, in order, and not before its epoch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.client import PERSISTENT, Client, make_broker
from tests.support.rejecting import add_rejecting_queue, take_answers
from tests.support.storage import ManualStorage
from warrenmq.core.ports import NOTHING, SYNCED, WRITTEN

# By routing key: what the publish waits for by itself, and whether it is nacked. The keys in capitals are exchanges.
PUBLISHES = {
    "memory": (NOTHING, False),
    "written": (WRITTEN, False),
    "synced": (SYNCED, False),
    "nowhere": (NOTHING, False),
    "full": (NOTHING, True),
    "WRITTEN AND FULL": (WRITTEN, True),
    "SYNCED AND FULL": (SYNCED, True),
}

publishes = st.tuples(st.just("publish"), st.sampled_from(sorted(PUBLISHES)))
progress = st.tuples(st.sampled_from(["write", "sync"]), st.integers(1, 3))
steps = st.lists(st.one_of(publishes, publishes, st.just(("end turn", 0)), progress), max_size=60)


@given(steps)
def test_every_publish_is_answered_once_and_not_before_its_epoch(steps: list[tuple[str, str | int]]) -> None:
    broker = make_broker(ManualStorage())
    client = Client(broker)
    channel = client.channel()
    channel.declare("memory")
    channel.declare("written", durable=True, arguments={"x-durability": "os"})
    channel.declare("synced", durable=True)
    full = add_rejecting_queue(channel.vhost)
    for name in ("written", "synced"):
        exchange = channel.declare_exchange(f"{name.upper()} AND FULL", "fanout")
        channel.bind(exchange.name, channel.vhost.queues[name])
        channel.bind(exchange.name, full)
    channel.core.select_confirms()
    log = broker.storage.log
    broker.end_turn()
    assert isinstance(log.epoch, int)  # type: ignore[attr-defined]

    wanted: list[tuple[int, bool]] = []  # by tag - 1
    turns: list[int] = []  # the epoch of each publish; 0: its turn has not ended
    answered = 0

    def check() -> None:
        nonlocal answered
        for what, tag, multiple in take_answers(client.outbox):
            first = answered + 1 if multiple else tag
            assert first == answered + 1, "answers are in order"
            assert tag <= len(wanted)
            for number in range(first, tag + 1):
                level, is_rejected = wanted[number - 1]
                assert what == ("nack" if is_rejected else "ack")
                epoch = turns[number - 1]
                assert epoch, "the turn has ended"
                assert level != WRITTEN or epoch <= log.written
                assert level != SYNCED or epoch <= log.durable
            answered = tag

    def end_turn() -> None:
        broker.end_turn()
        turns.extend([log.epoch] * (len(wanted) - len(turns)))  # type: ignore[attr-defined]
        check()

    for what, argument in steps:
        if what == "publish":
            key = str(argument)
            exchange_name = key if key.isupper() else ""
            channel.publish(b"", "" if exchange_name else key, exchange_name, delivery_mode=PERSISTENT)
            wanted.append(PUBLISHES[key])
        elif what == "end turn":
            end_turn()
        elif what == "write":
            log.advance(min(log.epoch, log.written + int(argument)), log.durable)  # type: ignore[attr-defined]
        else:
            durable = min(log.epoch, log.durable + int(argument))  # type: ignore[attr-defined]
            log.advance(max(log.written, durable), durable)
        check()
    end_turn()
    log.advance(log.epoch, log.epoch)  # type: ignore[attr-defined]
    check()
    assert answered == len(wanted)
