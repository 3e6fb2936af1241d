"""Work on an item that fails leaves its error and the last lines of the traceback with the item."""

import asyncio
import logging

import pytest

from distlock.recipes import Queue
from distlock.recipes.queue_items import MOST_REASON

pytestmark = pytest.mark.once


class Unprintable(Exception):
    """Neither str() nor repr() can say what it is."""

    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


@pytest.fixture
def queue(local, name):
    queue = Queue(name, max_deliveries=1)
    queue.put("poison")
    return queue


def send(body):
    raise ValueError(f"no address for\n{body}")


def work_on(body):
    send(body)


def fail(queue, work=work_on):
    with pytest.raises(BaseException) as caught, queue.get(blocking=False) as delivery:
        work(delivery.body)
    return caught.value


def reason(queue):
    (letter,) = queue.dead()
    return letter.reason


def test_the_error_comes_first_and_then_where_it_was_raised(queue):
    fail(queue)
    error, here, caller, body = reason(queue).split("; ")
    assert error == "ValueError: no address for poison"
    assert here.startswith("in send (recipes/test_queue_reasons.py:")
    assert here.endswith('raise ValueError(f"no address for\\n{body}")')
    assert caller.startswith("in work_on (")
    assert caller.endswith("send(body)")
    assert body.startswith("in fail (")


def test_an_error_of_any_length_leaves_room_for_where_it_was_raised(queue):
    def work(body):
        raise ValueError("x" * 10_000)

    fail(queue, work)
    assert "; in work (" in reason(queue)
    assert len(reason(queue)) <= MOST_REASON


def test_an_error_without_a_text_is_told_by_its_class(queue):
    def work(body):
        raise Unprintable

    assert isinstance(fail(queue, work), Unprintable)
    assert reason(queue).startswith("Unprintable; in work (")


def test_an_async_block_does_the_same(queue):
    async def work():
        async with await queue.aget(blocking=False) as delivery:
            work_on(delivery.body)

    with pytest.raises(ValueError, match="no address"):
        asyncio.run(work())
    assert "; in send (" in reason(queue)


def test_all_of_the_traceback_is_in_the_log(queue, caplog):
    error = fail(queue)
    (record,) = [one for one in caplog.records if one.exc_info and one.name == "distlock"]
    assert record.exc_info[1] is error
    assert record.levelno == logging.ERROR
    assert (record.lock, record.kind, record.backend) == (queue.name, "queue", "default")
    assert record.token > 0
    assert "attempt 1" in record.getMessage()


def test_an_interrupt_is_no_failure_to_be_logged(queue, caplog):
    def work(body):
        raise KeyboardInterrupt

    fail(queue, work)
    assert not [message for message in caplog.messages if queue.name in message]
    assert reason(queue).startswith("KeyboardInterrupt")


def test_a_log_that_fails_loses_neither_the_error_nor_the_item(queue, monkeypatch):
    class Failing(logging.Handler):
        def handle(self, record):
            raise OSError("the disk is full")

    handler = Failing()
    monkeypatch.setattr("logging.raiseExceptions", False)
    logging.getLogger("distlock").addHandler(handler)
    try:
        assert isinstance(fail(queue), ValueError)
    finally:
        logging.getLogger("distlock").removeHandler(handler)
    assert reason(queue).startswith("ValueError: no address")
