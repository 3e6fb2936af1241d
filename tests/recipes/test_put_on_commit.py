"""An item that is put when the transaction commits, and values that an encoder writes."""

import asyncio
import datetime
import decimal
import json
import queue
import uuid

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.core.serializers.json import DjangoJSONEncoder
from django.db import connection, transaction

from distlock import LockUnavailable, locks
from distlock.recipes import Config, Mailbox, Queue, Topic

pytestmark = pytest.mark.once


@pytest.fixture
def letters(local, name):
    return Queue(name)


@pytest.mark.django_db(transaction=True)
class TestInATransaction:
    def test_it_is_put_after_the_commit(self, letters):
        with transaction.atomic():
            letters.put_on_commit("one")
            assert letters.empty()
        assert letters.get(blocking=False).body == "one"

    def test_after_a_rollback_it_is_not(self, letters):
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            letters.put_on_commit("one")
            raise ZeroDivisionError
        assert letters.empty()

    def test_nor_after_a_rollback_to_a_savepoint(self, letters):
        with transaction.atomic():
            with pytest.raises(ZeroDivisionError), transaction.atomic():
                letters.put_on_commit("one")
                raise ZeroDivisionError
            letters.put_on_commit("two")
        assert letters.get(blocking=False).body == "two"
        assert letters.qsize() == 1

    def test_put_itself_does_not_wait_for_it(self, letters):
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            letters.put("one")
            raise ZeroDivisionError
        assert letters.get(blocking=False).body == "one"

    def test_without_one_it_is_put_at_once(self, letters):
        letters.put_on_commit("one")
        assert letters.get(blocking=False).body == "one"

    def test_the_database_may_be_named(self, letters):
        with transaction.atomic():
            letters.put_on_commit("one", using="default")
            assert letters.empty()
        assert letters.qsize() == 1

    def test_what_is_done_to_the_body_later_does_not_count(self, letters):
        body = {"to": "anna"}
        with transaction.atomic():
            letters.put_on_commit(body)
            body["to"] = "ben"
        assert letters.get(blocking=False).body == {"to": "anna"}

    @pytest.mark.parametrize(
        ("body", "terms"), [({1, 2}, {}), ("x", {"timeout": -3}), ("x" * 2**17, {})]
    )
    def test_what_put_refuses_is_refused_before_the_commit(self, letters, body, terms):
        with transaction.atomic():
            with pytest.raises((TypeError, ValueError)):
                letters.put_on_commit(body, **terms)
            assert not connection.run_on_commit

    def test_a_queue_that_is_full_raises_out_of_the_block_and_leaves_it_committed(
        self, local, name, django_user_model
    ):
        letters = Queue(name, maxsize=1)
        letters.put("one")
        with pytest.raises(queue.Full), transaction.atomic():
            django_user_model.objects.create(username=name)
            letters.put_on_commit("two", blocking=False)
        assert django_user_model.objects.filter(username=name).exists()

    @pytest.mark.django_db(transaction=True, databases=["default", "postgresql"])
    def test_so_does_a_backend_that_is_away(self, backend_settings, settings, proxied, name):
        settings.DISTLOCK = backend_settings("postgresql")
        network = proxied("postgresql")
        locks.close_all()
        network.refuse()
        with pytest.raises(LockUnavailable), transaction.atomic():
            Queue(name).put_on_commit("one", timeout=0.2)
        network.heal()
        locks.close_all()


def test_a_task_has_no_transaction(letters):
    async def put():
        letters.put_on_commit("one")

    with pytest.raises(SynchronousOnlyOperation, match="aput"):
        asyncio.run(put())


VALUES = {
    "day": datetime.date(2026, 1, 31),
    "at": datetime.datetime(2026, 1, 31, 12, 0, tzinfo=datetime.UTC),
    "price": decimal.Decimal("9.90"),
    "id": uuid.UUID(int=7),
}
WRITTEN = json.loads(json.dumps(VALUES, cls=DjangoJSONEncoder))


class TestAnEncoder:
    @pytest.mark.parametrize("recipe", [Queue, Mailbox])
    @pytest.mark.parametrize("put", ["put", "put_on_commit"])
    @pytest.mark.django_db
    def test_writes_what_an_item_is(self, local, name, recipe, put, settings):
        items = recipe(name, encoder=DjangoJSONEncoder)
        with transaction.atomic(durable=False):
            getattr(items, put)(VALUES)
            while connection.run_on_commit:
                _, call, _ = connection.run_on_commit.pop()
                call()
        assert items.get(blocking=False).body == WRITTEN

    def test_writes_a_value(self, local, name):
        config = Config(name, encoder=DjangoJSONEncoder)
        config.set(VALUES)
        assert config.get().value == Config(name).get().value == WRITTEN

    def test_writes_a_message(self, local, name):
        topic = Topic(name, encoder=DjangoJSONEncoder)
        topic.publish(VALUES)
        (message,) = topic.history()
        assert message.message == WRITTEN

    def test_does_so_for_tasks(self, local, name):
        letters = Queue(name, encoder=DjangoJSONEncoder)
        asyncio.run(letters.aput_many([VALUES, VALUES]))
        assert letters.get(blocking=False).body == WRITTEN

    @pytest.mark.parametrize("encoder", [None, DjangoJSONEncoder])
    @pytest.mark.parametrize(
        "value",
        [{1: "a", "1": "b"}, object(), float("nan"), "x" * 2**17, {"a": [[{1: "a", "1": "b"}]]}],
    )
    def test_accepts_nothing_that_could_not_be_read_again(self, local, name, encoder, value):
        for put, argument in [
            (Queue(name, encoder=encoder).put, "body"),
            (Config(name, encoder=encoder).set, "value"),
            (Topic(name, encoder=encoder).publish, "message"),
        ]:
            with pytest.raises((TypeError, ValueError), match=argument):
                put(value)

    @pytest.mark.parametrize("wrong", [json.dumps, DjangoJSONEncoder(), "json", int])
    def test_is_a_class_of_encoders(self, name, wrong):
        for recipe in (Queue, Config, Topic):
            with pytest.raises(TypeError, match="encoder must be a subclass of json.JSONEncoder"):
                recipe(name, encoder=wrong)
