"""Messages are created a million times per second: the Cython decorators of their classes must be in effect."""

from __future__ import annotations

import gc

from warrenmq.core import message as message_module
from warrenmq.core.message import Message, QueuedMessage, enqueue_as, make_message

IS_COMPILED = not message_module.__file__.endswith(".py")


def test_the_garbage_collector_has_nothing_to_do_with_them_compiled() -> None:
    message = make_message(b"\x00\x01q", b"header", b"body")
    assert gc.is_tracked(message) is not IS_COMPILED
    assert gc.is_tracked(enqueue_as(message, 1)) is not IS_COMPILED


def test_a_place_comes_from_the_freelist_with_nothing_of_the_one_before() -> None:
    message = Message(b"\x00\x01q", b"header", b"body")
    message.uid = message.publish_time = message.enqueue_time = 7
    entry = QueuedMessage(message, 1)
    entry.attempts, entry.epoch, entry.redelivered, entry.queue, entry.consumer = 3, 4, True, object(), object()
    del entry, message
    again = enqueue_as(make_message(b"\x00\x01r", b"other", b""), 2)
    assert (again.attempts, again.epoch, again.redelivered, again.queue, again.consumer) == (0, 0, False, None, None)
    assert (again.message.uid, again.message.publish_time, again.message.enqueue_time) == (0, 0, 0)
