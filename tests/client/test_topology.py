"""What a connection declared: the records against a small model of a broker, and the cases worth a name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from warrenmq.client.topology import BindingRecord, ConsumerRecord, ExchangeRecord, QueueRecord, Topology


def queue_binding(queue: str, exchange: str, key: str = "", **arguments: Any) -> BindingRecord:
    return BindingRecord(queue, exchange, key, arguments)


def exchange_binding(destination: str, source: str, key: str = "", **arguments: Any) -> BindingRecord:
    return BindingRecord(destination, source, key, arguments, to_exchange=True)


def names(records: list[Any]) -> list[str]:
    return [record.name for record in records]


def test_the_replay_has_the_order_of_declaration() -> None:
    topology = Topology()
    for name in ("b", "a", "c"):
        topology.add_queue(QueueRecord(name))
        topology.add_exchange(ExchangeRecord(name))
        topology.add_consumer(ConsumerRecord(1, name, "a"))
    topology.add_queue(QueueRecord("b", durable=True))
    assert names(topology.queues()) == names(topology.exchanges()) == ["b", "a", "c"]
    assert topology.queues()[0].durable
    assert [consumer.tag for consumer in topology.consumers(1)] == ["b", "a", "c"]
    assert topology.consumers(2) == []


def test_deleting_a_queue_takes_its_bindings_and_consumers() -> None:
    topology = Topology()
    topology.add_queue(QueueRecord("q"))
    topology.add_binding(queue_binding("q", "e"))
    topology.add_binding(exchange_binding("q", "e"))  # an exchange that happens to have the same name
    topology.add_consumer(ConsumerRecord(1, "t", "q"))
    topology.remove_queue("q")
    assert (topology.queues(), topology.queue_bindings(), topology.consumers(1)) == ([], [], [])
    assert topology.exchange_bindings() == [exchange_binding("q", "e")]


def test_an_auto_delete_queue_goes_with_its_last_consumer() -> None:
    topology = Topology()
    topology.add_queue(QueueRecord("q", auto_delete=True))
    topology.add_consumer(ConsumerRecord(1, "t", "q"))
    topology.add_consumer(ConsumerRecord(2, "t", "q"))
    topology.remove_consumer(1, "t")
    assert names(topology.queues()) == ["q"]
    topology.remove_channel(2)
    assert topology.queues() == []


def test_an_exclusive_queue_stays_when_its_consumers_go() -> None:
    topology = Topology()
    topology.add_queue(QueueRecord("q", exclusive=True))
    topology.add_consumer(ConsumerRecord(1, "t", "q"))
    topology.remove_channel(1)
    assert names(topology.queues()) == ["q"]


def test_auto_delete_exchanges_go_one_after_the_other() -> None:
    """a -> b -> queue: without the queue b has no binding left, without b neither has a."""
    topology = Topology()
    for name in ("a", "b"):
        topology.add_exchange(ExchangeRecord(name, auto_delete=True))
    topology.add_queue(QueueRecord("q", auto_delete=True))
    topology.add_binding(exchange_binding("b", "a"))
    topology.add_binding(queue_binding("q", "b"))
    topology.add_consumer(ConsumerRecord(1, "t", "q"))
    topology.remove_consumer(1, "t")
    assert (topology.exchanges(), topology.exchange_bindings()) == ([], [])


def test_exchanges_bound_in_a_ring_do_not_loop() -> None:
    topology = Topology()
    for name in ("a", "b"):
        topology.add_exchange(ExchangeRecord(name, auto_delete=True))
    topology.add_binding(exchange_binding("b", "a"))
    topology.add_binding(exchange_binding("a", "b"))
    topology.remove_exchange("a")
    assert (topology.exchanges(), topology.exchange_bindings()) == ([], [])


def test_bindings_differ_by_key_and_arguments_and_their_types() -> None:
    topology = Topology()
    bindings = [
        queue_binding("q", "e"),
        queue_binding("q", "e", "k"),
        queue_binding("q", "e", "k", x=1),
        queue_binding("q", "e", "k", x=True),
        queue_binding("q", "e", "k", x=[1, {"y": b"z"}]),
    ]
    for binding in [*bindings, queue_binding("q", "e", "k", x=[1, {"y": b"z"}])]:
        topology.add_binding(binding)
    assert len(topology.queue_bindings()) == len(bindings)
    topology.remove_binding(queue_binding("q", "e", "k", x=True))
    assert len(topology.queue_bindings()) == len(bindings) - 1
    assert queue_binding("q", "e", "k", x=1) in topology.queue_bindings()


def test_old_names_of_server_named_queues_are_translated_for_good() -> None:
    topology = Topology()
    topology.add_queue(QueueRecord("amq.gen-1", is_server_named=True))
    topology.add_binding(queue_binding("amq.gen-1", "e"))
    topology.add_consumer(ConsumerRecord(1, "t", "amq.gen-1"))
    topology.rename_queue("amq.gen-1", "amq.gen-2")
    topology.rename_queue("amq.gen-2", "amq.gen-3")
    assert topology.queue_name("amq.gen-1") == topology.queue_name("amq.gen-2") == "amq.gen-3"
    assert topology.queue_bindings() == [queue_binding("amq.gen-3", "e")]
    assert topology.consumers(1)[0].queue == "amq.gen-3"
    topology.add_binding(queue_binding("amq.gen-1", "f"))
    topology.remove_binding(queue_binding("amq.gen-2", "e"))
    assert topology.queue_bindings() == [queue_binding("amq.gen-3", "f")]
    topology.remove_queue("amq.gen-1")
    assert topology.queues() == []


def test_an_old_name_that_is_declared_on_purpose_is_a_queue_of_its_own() -> None:
    topology = Topology()
    topology.add_queue(QueueRecord("old", is_server_named=True))
    topology.rename_queue("old", "new")
    topology.add_queue(QueueRecord("old"))
    topology.add_consumer(ConsumerRecord(1, "t", "old"))
    assert topology.consumers(1)[0].queue == "old"
    topology.remove_queue("old")
    assert names(topology.queues()) == ["new"]


# -- against a model ---------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class ModelQueue:
    """A queue is a thing with names, the last of which holds."""

    names: list[str]
    auto_delete: bool
    is_declared: bool = True


@dataclass
class Model:
    """The broker as this connection sees it: things that point to each other, cleared up until nothing changes."""

    exchanges: dict[str, bool] = field(default_factory=dict)  # name -> auto_delete
    queues: list[ModelQueue] = field(default_factory=list)
    bindings: list[tuple[object, str, str]] = field(default_factory=list)  # destination, source, key
    consumers: list[tuple[int, str, ModelQueue]] = field(default_factory=list)

    def find(self, name: str) -> ModelQueue:
        for queue in reversed(self.queues):
            if name in queue.names:
                return queue
        queue = ModelQueue([name], False, is_declared=False)  # somebody else's
        self.queues.append(queue)
        return queue

    def declared(self) -> set[tuple[str, bool]]:
        return {(queue.names[-1], queue.auto_delete) for queue in self.queues if queue.is_declared}

    def declare_exchange(self, name: str, auto_delete: bool) -> None:
        self.exchanges[name] = auto_delete

    def declare_queue(self, name: str, auto_delete: bool) -> None:
        queue = self.find(name)
        if queue.names[-1] != name:  # it is the old name of another: from now on a name of its own
            queue.names.remove(name)
            queue = self.find(name)
        queue.is_declared, queue.auto_delete = True, auto_delete

    def delete_exchange(self, name: str) -> None:
        self.exchanges.pop(name, None)
        self.drop([each for each in self.bindings if each[1] == name or each[0] == name])

    def delete_queue(self, name: str) -> None:
        self.remove_queue(self.find(name))

    def remove_queue(self, queue: ModelQueue) -> None:
        queue.is_declared = False
        self.consumers = [each for each in self.consumers if each[2] is not queue]
        self.drop([each for each in self.bindings if each[0] is queue])

    def bind(self, destination: object, source: str, key: str) -> None:
        if (destination, source, key) not in self.bindings:
            self.bindings.append((destination, source, key))

    def drop(self, bindings: list[tuple[object, str, str]]) -> None:
        self.bindings = [each for each in self.bindings if each not in bindings]
        for _, source, _ in bindings:
            if self.exchanges.get(source) and not any(each[1] == source for each in self.bindings):
                self.delete_exchange(source)

    def consume(self, channel: int, tag: str, queue: ModelQueue) -> None:
        self.consumers = [each for each in self.consumers if each[:2] != (channel, tag)]
        self.consumers.append((channel, tag, queue))

    def cancel(self, channel: int, tag: str) -> None:
        for each in [each for each in self.consumers if each[:2] == (channel, tag)]:
            self.consumers.remove(each)
            if each[2].auto_delete and each[2].is_declared and all(other[2] is not each[2] for other in self.consumers):
                self.remove_queue(each[2])

    def close_channel(self, channel: int) -> None:
        for tag in [each[1] for each in self.consumers if each[0] == channel]:
            self.cancel(channel, tag)


NAMES = st.sampled_from("abcd")
KEYS = st.sampled_from(["", "k"])
CHANNELS = st.sampled_from([1, 2])
STEPS = st.one_of(
    st.tuples(st.just("declare_exchange"), NAMES, st.booleans()),
    st.tuples(st.just("delete_exchange"), NAMES),
    st.tuples(st.just("declare_queue"), NAMES, st.booleans()),
    st.tuples(st.just("delete_queue"), NAMES),
    st.tuples(st.just("bind_queue"), NAMES, NAMES, KEYS),
    st.tuples(st.just("unbind_queue"), NAMES, NAMES, KEYS),
    st.tuples(st.just("bind_exchange"), NAMES, NAMES, KEYS),
    st.tuples(st.just("unbind_exchange"), NAMES, NAMES, KEYS),
    st.tuples(st.just("consume"), CHANNELS, KEYS, NAMES),
    st.tuples(st.just("cancel"), CHANNELS, KEYS),
    st.tuples(st.just("close_channel"), CHANNELS),
    st.tuples(st.just("rename"), NAMES),
)


def take_step(step: tuple[Any, ...], topology: Topology, model: Model, fresh: str) -> None:
    match step:
        case "declare_exchange", name, auto_delete:
            topology.add_exchange(ExchangeRecord(name, auto_delete=auto_delete))
            model.declare_exchange(name, auto_delete)
        case "delete_exchange", name:
            topology.remove_exchange(name)
            model.delete_exchange(name)
        case "declare_queue", name, auto_delete:
            topology.add_queue(QueueRecord(name, auto_delete=auto_delete))
            model.declare_queue(name, auto_delete)
        case "delete_queue", name:
            topology.remove_queue(name)
            model.delete_queue(name)
        case "bind_queue", queue, source, key:
            topology.add_binding(queue_binding(queue, source, key))
            model.bind(model.find(queue), source, key)
        case "unbind_queue", queue, source, key:
            topology.remove_binding(queue_binding(queue, source, key))
            model.drop([each for each in model.bindings if each == (model.find(queue), source, key)])
        case "bind_exchange", destination, source, key:
            topology.add_binding(exchange_binding(destination, source, key))
            model.bind(destination, source, key)
        case "unbind_exchange", destination, source, key:
            topology.remove_binding(exchange_binding(destination, source, key))
            model.drop([each for each in model.bindings if each == (destination, source, key)])
        case "consume", channel, tag, queue:
            topology.add_consumer(ConsumerRecord(channel, tag, queue))
            model.consume(channel, tag, model.find(queue))
        case "cancel", channel, tag:
            topology.remove_consumer(channel, tag)
            model.cancel(channel, tag)
        case "close_channel", channel:
            topology.remove_channel(channel)
            model.close_channel(channel)
        case "rename", name:
            topology.rename_queue(name, fresh)
            model.find(name).names.append(fresh)


@given(st.lists(STEPS, max_size=40))
def test_the_records_are_what_a_broker_would_have(steps: list[tuple[Any, ...]]) -> None:
    topology, model = Topology(), Model()
    for number, step in enumerate(steps):
        take_step(step, topology, model, f"generated-{number}")
        assert {(each.name, each.auto_delete) for each in topology.exchanges()} == set(model.exchanges.items())
        assert {(each.name, each.auto_delete) for each in topology.queues()} == model.declared()
        bindings = [
            (each.destination, each.to_exchange, each.source, each.routing_key)
            for each in topology.queue_bindings() + topology.exchange_bindings()
        ]
        expected = {
            (each[0].names[-1], False, *each[1:]) if isinstance(each[0], ModelQueue) else (each[0], True, *each[1:])
            for each in model.bindings
        }
        assert len(bindings) == len(expected)
        assert set(bindings) == expected
        for channel in (1, 2):
            assert sorted((each.tag, each.queue) for each in topology.consumers(channel)) == sorted(
                (tag, queue.names[-1]) for number, tag, queue in model.consumers if number == channel
            )
