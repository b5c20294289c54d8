"""Replies are matched to replies in order."""

from __future__ import annotations

import pytest

from tests.support.loops import on_a_loop
from warrenmq.client.engine.pending_replies import PendingReplies
from warrenmq.client.errors import ConnectionLost
from warrenmq.protocol import spec


@on_a_loop
async def test_replies_resolve_calls_in_order() -> None:
    replies = PendingReplies()
    first, second = replies.add(spec.QueueDeclareOk), replies.add(spec.QueueDeclareOk)
    assert replies.resolve("one", spec.QueueDeclareOk)
    assert replies.resolve("two", spec.QueueDeclareOk)
    assert (await first, await second) == ("one", "two")


@on_a_loop
async def test_reply_of_another_kind_resolves_no_call() -> None:
    replies = PendingReplies()
    waiting = replies.add(spec.BasicGetOk, spec.BasicGetEmpty)
    assert not replies.resolve("purged", spec.QueuePurgeOk)
    assert replies.resolve("empty", spec.BasicGetEmpty)
    assert await waiting == "empty"
    assert not replies.resolve("nobody", spec.BasicGetEmpty)


@on_a_loop
async def test_late_reply_does_not_resolve_the_next_call() -> None:
    replies, late = PendingReplies(), []
    given_up = replies.add(spec.QueueDeclareOk, on_late_reply=late.append)
    waiting = replies.add(spec.QueueDeclareOk)
    given_up.cancel()
    replies.resolve("first", spec.QueueDeclareOk)
    replies.resolve("second", spec.QueueDeclareOk)
    assert await waiting == "second"
    assert late == ["first"]


@on_a_loop
async def test_unsent_call_is_withdrawn() -> None:
    replies = PendingReplies()
    waiting, unsent = replies.add(spec.BasicQosOk), replies.add(spec.BasicQosOk)
    replies.withdraw(unsent)
    replies.resolve("ok", spec.BasicQosOk)
    assert await waiting == "ok"
    assert not replies.resolve("more", spec.BasicQosOk)


@on_a_loop
async def test_fail_all_raises_in_every_caller() -> None:
    replies = PendingReplies()
    waiting = [replies.add(spec.BasicQosOk) for _ in range(3)]
    waiting[1].cancel()
    replies.fail_all(ConnectionLost("gone"))
    for each in (waiting[0], waiting[2]):
        with pytest.raises(ConnectionLost):
            await each
