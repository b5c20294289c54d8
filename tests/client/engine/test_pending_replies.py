"""Who waits for which reply."""

from __future__ import annotations

import pytest

from tests.support.loops import on_a_loop
from warrenmq.client.engine.pending_replies import PendingReplies
from warrenmq.client.errors import ConnectionLost
from warrenmq.protocol import spec


@on_a_loop
async def test_replies_go_to_the_calls_in_order() -> None:
    calls = PendingReplies()
    first, second = calls.begin(spec.QueueDeclareOk), calls.begin(spec.QueueDeclareOk)
    assert calls.answer("one", spec.QueueDeclareOk)
    assert calls.answer("two", spec.QueueDeclareOk)
    assert (await first, await second) == ("one", "two")


@on_a_loop
async def test_reply_of_another_kind_is_nobodys() -> None:
    calls = PendingReplies()
    waiting = calls.begin(spec.BasicGetOk, spec.BasicGetEmpty)
    assert not calls.answer("purged", spec.QueuePurgeOk)
    assert calls.answer("empty", spec.BasicGetEmpty)
    assert await waiting == "empty"
    assert not calls.answer("nobody", spec.BasicGetEmpty)


@on_a_loop
async def test_late_reply_is_not_taken_for_the_next_calls() -> None:
    calls, late = PendingReplies(), []
    given_up = calls.begin(spec.QueueDeclareOk, on_late_reply=late.append)
    waiting = calls.begin(spec.QueueDeclareOk)
    given_up.cancel()
    calls.answer("first", spec.QueueDeclareOk)
    calls.answer("second", spec.QueueDeclareOk)
    assert await waiting == "second"
    assert late == ["first"]


@on_a_loop
async def test_call_that_was_not_sent_leaves_the_line() -> None:
    calls = PendingReplies()
    waiting, unsent = calls.begin(spec.BasicQosOk), calls.begin(spec.BasicQosOk)
    calls.withdraw(unsent)
    calls.answer("ok", spec.BasicQosOk)
    assert await waiting == "ok"
    assert not calls.answer("more", spec.BasicQosOk)


@on_a_loop
async def test_end_fails_all_who_wait() -> None:
    calls = PendingReplies()
    waiting = [calls.begin(spec.BasicQosOk) for _ in range(3)]
    waiting[1].cancel()
    calls.fail(ConnectionLost("gone"))
    for each in (waiting[0], waiting[2]):
        with pytest.raises(ConnectionLost):
            await each
