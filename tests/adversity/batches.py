"""A publisher with confirms that goes on until the broker is killed."""

from __future__ import annotations

from tests.support.process import BrokerProcess
from tests.support.wire import EndOfStream, WireChannel

BATCH = 20


class BatchPublisher:
    """Sends numbered messages to one queue, in batches, and counts those that were confirmed."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.sent = 0
        self.confirmed = 0

    def run(self, broker: BrokerProcess) -> None:
        try:
            with broker.connect() as connection:
                channel = connection.channel()
                channel.call("confirm.select")
                self.sent = self.confirmed
                base = self.confirmed
                while True:
                    for number in range(self.sent, self.sent + BATCH):
                        self.publish(channel, number)
                    self.sent += BATCH
                    while channel.expect("basic.ack")["delivery_tag"] < self.sent - base:
                        pass
                    self.confirmed = self.sent
        except (OSError, EndOfStream):
            return  # the broker is gone

    def publish(self, channel: WireChannel, number: int) -> None:
        """Send the message with this number."""
        raise NotImplementedError
