"""The walk-through of the Java broker: its client tests, DemoProducer and DemoConsumer, a restart, and its wish list.

    python examples/ancestors/java_broker.py

The program runs a broker of its own, with a temporary data folder. DemoProducer publishes to a direct exchange with
the name of a queue as the routing key, and binds nothing. The Java broker delivers that message; an AMQP broker drops
it. The example publishes it as it is written, reports that it was returned, and shows both replacements.
"""

from __future__ import annotations

import tempfile

import warrenmq
from warrenmq import client

EXCHANGE = "testExchange"
QUEUE = "testQueue"
PERSISTENT = client.Properties(delivery_mode=2)


def declare_and_delete(connection: client.Connection) -> None:
    """MqClientTests: testChannel, testExchange, testQueue, testBinding."""
    channel = connection.channel()
    channel.exchange_declare(EXCHANGE, "direct", durable=True)
    channel.queue_declare(QUEUE, durable=True)
    channel.queue_bind(QUEUE, EXCHANGE, "testBindingKey")
    channel.queue_unbind(QUEUE, EXCHANGE, "testBindingKey")
    channel.queue_delete(QUEUE)
    channel.exchange_delete(EXCHANGE)
    channel.close()
    print("channel, exchange, queue and binding: created and deleted")


def produce(connection: client.Connection) -> None:
    """DemoProducer. `result()` raises unless the broker has stored the message in a queue."""
    channel = connection.channel()
    channel.exchange_declare(EXCHANGE, "direct", durable=True)
    channel.queue_declare(QUEUE, durable=True)
    channel.confirm_select()
    try:
        channel.publish(EXCHANGE, QUEUE, b"hello", PERSISTENT, mandatory=True).result()
    except client.Unroutable as unroutable:
        print(f"returned: {unroutable.returned.reply_text}, as {QUEUE} is not bound to {EXCHANGE}")

    channel.publish("", QUEUE, b"hello", PERSISTENT, mandatory=True).result()
    print("stored: the default exchange routes by the name of the queue")

    channel.queue_bind(QUEUE, EXCHANGE, QUEUE)
    channel.publish(EXCHANGE, QUEUE, b"hello again", PERSISTENT, mandatory=True).result()
    print("stored: the queue is bound with its name as the binding key")
    channel.close()


def consume(connection: client.Connection) -> list[str]:
    """DemoConsumer, with manual acks. Return the bodies."""
    bodies = []
    channel = connection.channel()
    count = channel.message_count(QUEUE)
    if count:
        for delivery in channel.consume(QUEUE, consumer_tag="demo", timeout=10):
            bodies.append(delivery.body.decode())
            print(f"consumed: tag={delivery.consumer_tag} {delivery.properties} body={bodies[-1]}")
            delivery.ack()
            if len(bodies) == count:
                break
    channel.close()
    return bodies


def extensions(connection: client.Connection) -> None:
    """What the Java broker lists as future work: exclusive, auto-delete, confirms (above), nack, dead letters."""
    channel = connection.channel()
    exclusive = channel.queue_declare(exclusive=True, auto_delete=True).queue
    print(f"exclusive, auto-delete queue: {exclusive}")

    channel.queue_declare("failed")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "failed"}
    channel.queue_declare("work", arguments=arguments)
    channel.publish("", "work", b"cannot be done")
    delivery = channel.get("work")
    assert delivery is not None
    delivery.nack(requeue=False)
    dead = channel.get("failed", auto_ack=True)
    assert dead is not None
    print(f"dead letter: {dead.body.decode()}, {dead.headers['x-death'][0]['reason']}")
    channel.close()


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="java-broker-") as folder:
        with warrenmq.Broker(data_dir=folder) as broker, client.connect(broker.url) as connection:
            declare_and_delete(connection)
            produce(connection)
        print("the broker restarts on the same folder")
        with warrenmq.Broker(data_dir=folder) as broker, client.connect(broker.url) as connection:
            print("consumed after the restart:", consume(connection))
            extensions(connection)


if __name__ == "__main__":
    main()
