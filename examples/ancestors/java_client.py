"""The walk-through of RabbitMQ's Java client: methods and frames, the channel's calls, its listeners, recovery.

    python examples/ancestors/java_client.py

The program runs a broker of its own and restarts it on the same port: the client reconnects and redeclares exchange,
queue, binding and consumer, in the order of AutorecoveringConnection.
"""

from __future__ import annotations

import queue
import threading

import warrenmq
from warrenmq import client
from warrenmq.protocol import methods, spec

EXCHANGE, QUEUE, KEY = "myExchange", "myQueue", "myRoutingKey"
LIMIT = 30.0  # seconds that a step may take


def build_method() -> bytes:
    """AMQP.Basic.Publish.Builder, Method.toFrame: a method as an object, and its payload."""
    publish = spec.BasicPublish(exchange=EXCHANGE, routing_key=KEY, mandatory=True)
    payload = methods.encode(publish)
    if methods.decode(payload) != publish:
        raise AssertionError("the payload does not decode to the method")
    print(f"{publish.name}: {len(payload)} bytes")
    return payload


def declare(channel: client.Channel) -> None:
    channel.exchange_declare(EXCHANGE, "direct")
    channel.queue_declare(QUEUE, durable=True)
    channel.queue_bind(QUEUE, EXCHANGE, KEY)


def publish_and_consume(connection: client.Connection) -> client.Delivery:
    """basicPublish with properties, and basicConsume with a DefaultConsumer."""
    channel = connection.channel()
    declare(channel)
    received: queue.Queue[client.Delivery] = queue.Queue()
    channel.consume(QUEUE, received.put, auto_ack=True)
    properties = client.Properties(headers={"color": "blue"}, expiration="10000")
    channel.publish(EXCHANGE, KEY, b"hello", properties, mandatory=True)
    delivery = received.get(timeout=LIMIT)
    print(f"handleDelivery: {delivery.body.decode()} {delivery.headers}")
    channel.close()
    return delivery


def get(connection: client.Connection) -> list[bytes]:
    """basicGet with automatic and with manual ack."""
    channel = connection.channel()
    for body in (b"one", b"two"):
        channel.publish(EXCHANGE, KEY, body)
    first = channel.get(QUEUE, auto_ack=True)
    second = channel.get(QUEUE)
    assert first is not None
    assert second is not None
    second.ack()
    print(f"basicGet: {first.body.decode()}, {second.body.decode()}; {channel.message_count(QUEUE)} left")
    channel.close()
    return [first.body, second.body]


def listen(connection: client.Connection) -> tuple[client.Returned, bool]:
    """ReturnListener and ConfirmListener. An unroutable message is returned, then confirmed."""
    channel = connection.channel()
    returned: queue.Queue[client.Returned] = queue.Queue()
    confirmed: queue.Queue[bool] = queue.Queue()
    channel.add_return_listener(returned.put)
    channel.add_confirm_listener(lambda tag, multiple, is_ack: confirmed.put(is_ack))
    channel.confirm_select()
    channel.publish(EXCHANGE, "no such key", b"return me", mandatory=True)
    message, is_ack = returned.get(timeout=LIMIT), confirmed.get(timeout=LIMIT)
    print(f"handleReturn: {message.reply_code} {message.reply_text}, {message.body.decode()}")
    print("handleAck" if is_ack else "handleNack")
    channel.close()
    return message, is_ack


def fail_in_callback(url: str) -> BaseException:
    """ExceptionHandler.handleConsumerException: the connection stays open."""
    failures: queue.Queue[BaseException] = queue.Queue()

    def on_exception(context: str, error: BaseException, source: object) -> None:
        failures.put(error)

    def fail(delivery: client.Delivery) -> None:
        raise ValueError(delivery.body.decode())

    with client.connect(url, exception_handler=on_exception) as connection:
        channel = connection.channel()
        name = channel.queue_declare(exclusive=True).queue
        channel.consume(name, fail)
        channel.publish("", name, b"a bad message")
        error = failures.get(timeout=LIMIT)
        print(f"handleConsumerException: {error!r}, connection open: {connection.is_open}")
    return error


def recover() -> list[bytes]:
    """AutorecoveringConnection: a broker that keeps nothing on disk is stopped and started again."""
    received: queue.Queue[bytes] = queue.Queue()
    recovered = threading.Event()
    metrics = client.CountingMetrics()
    broker = warrenmq.Broker().start()
    port = broker.port
    try:
        with client.connect(broker.url, recovery=client.Recovery(initial=0.05), metrics=metrics) as connection:
            connection.add_recovery_listener(lambda event: recovered.set() if event.kind == "recovered" else None)
            channel = connection.channel()
            declare(channel)
            channel.consume(QUEUE, lambda delivery: received.put(delivery.body), auto_ack=True)
            channel.publish(EXCHANGE, KEY, b"before")
            bodies = [received.get(timeout=LIMIT)]
            broker.stop()
            broker = warrenmq.Broker(port=port).start()
            if not recovered.wait(LIMIT):
                raise TimeoutError("the connection did not recover")
            channel.publish(EXCHANGE, KEY, b"after")
            bodies.append(received.get(timeout=LIMIT))
            counts = metrics.counts()
            print(f"recovered: consumed {bodies}, connections lost {counts.connections_lost}")
    finally:
        broker.stop()
    return bodies


def main() -> None:
    build_method()
    with warrenmq.Broker() as broker:
        with client.connect(broker.url) as connection:
            publish_and_consume(connection)
            get(connection)
            listen(connection)
        fail_in_callback(broker.url)
    recover()


if __name__ == "__main__":
    main()
