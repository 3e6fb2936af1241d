"""A newer holder's write counts, whenever it was committed and whatever has been seen before."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connections

from distlock.exceptions import StaleToken
from tests.contract.watch import eventually
from tests.databases import SERVERS, another_file

BLOCKED = {
    "mariadb": "SELECT variable_value FROM information_schema.global_status"
    " WHERE variable_name = 'INNODB_ROW_LOCK_CURRENT_WAITS'",
    "postgresql": "SELECT COUNT(*) FROM pg_locks WHERE NOT granted",
}


@pytest.fixture
def elsewhere(shop):
    """``elsewhere(function)``: its future; it runs on another thread, so on another connection."""

    def run(function):
        try:
            return function()
        finally:
            connections[shop.using].close()

    with ThreadPoolExecutor(1) as executor:
        yield lambda function: executor.submit(run, function)


def wait_until_blocked(shop, kind, future):
    def blocked():
        assert not future.done()
        return int(shop.database.execute(BLOCKED[kind])[0][0]) > 0

    eventually(blocked)


class TestInAnOpenTransaction:
    def test_a_refusal_leaves_the_transaction_usable(self, shop):
        seat = shop.seats.create(fence=6)
        with shop.atomic():
            shop.seats.create(number=1, state="mine")
            with pytest.raises(StaleToken):
                shop.seats.filter(pk=seat.pk).fenced_update(5, state="sold")
            shop.seats.filter(number=1).update(number=2)
        assert shop.states() == [("free", 6), ("mine", 0)]
        assert shop.seats.get(state="mine").number == 2

    def test_a_rollback_takes_the_fence_back(self, shop):
        shop.seats.create()
        with pytest.raises(ZeroDivisionError), shop.atomic():
            shop.seats.all().fenced_update(5, state="sold")
            raise ZeroDivisionError
        assert shop.states() == [("free", 0)]

    def test_a_refusal_undoes_its_own_writes_only(self, shop):
        shop.seats.create()
        shop.seats.create(fence=6)
        with shop.atomic():
            shop.seats.filter(fence=0).fenced_update(4, state="held")
            with pytest.raises(StaleToken):
                shop.seats.all().fenced_update(5, state="sold")
        assert shop.states() == [("held", 4), ("free", 6)]


@pytest.fixture(params=["plain", "joined", "child"])
def queryset(request, shop):
    """A queryset with one row, whose filter looks at that row only, or at others too."""
    event = shop.events.create()
    seat = shop.boxes.create(event=event)
    return {
        "plain": shop.seats.filter(pk=seat.pk, state="free"),
        "joined": shop.seats.filter(event__open=True),
        "child": shop.boxes.filter(pk=seat.pk),
    }[request.param]


class TestOnServers:
    @pytest.fixture(params=SERVERS)
    def kind(self, request):
        return request.param

    @pytest.fixture
    def old_snapshot(self, kind, shop):
        """Let MariaDB answer from what the first query saw, as is its own default."""
        if kind == "mariadb":
            with connections[shop.using].cursor() as cursor:
                cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")

    def test_a_write_after_the_snapshot_counts(self, shop, queryset, old_snapshot, elsewhere):
        with shop.atomic():
            assert queryset.count() == 1
            elsewhere(lambda: shop.seats.all().fenced_update(6, number=1)).result(30)
            with pytest.raises(StaleToken):
                queryset.fenced_update(5, number=2)
        assert shop.seats.get().number == 1

    def test_a_row_that_left_the_queryset_after_the_snapshot_is_not_written(
        self, shop, old_snapshot, elsewhere
    ):
        event = shop.events.create()
        shop.seats.create(event=event)
        with shop.atomic():
            assert shop.seats.filter(event__open=True, state="free").count() == 1
            elsewhere(lambda: shop.seats.all().fenced_update(4, state="sold")).result(30)
            free = shop.seats.filter(event__open=True, state="free")
            assert free.fenced_update(5, state="mine") == 0
        assert shop.states() == [("sold", 4)]

    def test_a_write_that_is_not_committed_yet_is_waited_for(self, kind, shop, queryset, elsewhere):
        with shop.atomic():
            shop.seats.all().fenced_update(6, number=1)
            older = elsewhere(lambda: queryset.fenced_update(5, number=2))
            wait_until_blocked(shop, kind, older)
        with pytest.raises(StaleToken):
            older.result(30)
        assert shop.seats.get().number == 1

    def test_a_write_that_is_rolled_back_does_not_count(self, kind, shop, queryset, elsewhere):
        with pytest.raises(ZeroDivisionError), shop.atomic():
            shop.seats.all().fenced_update(6, number=1)
            older = elsewhere(lambda: queryset.fenced_update(5, number=2))
            wait_until_blocked(shop, kind, older)
            raise ZeroDivisionError
        assert older.result(30) == 1
        assert shop.seats.get().number == 2


class TestOnSQLite:
    @pytest.fixture
    def kind(self, sqlite):
        with another_file("default", "wal"):
            yield "sqlite"

    def test_it_waits_for_the_writer_instead_of_failing(self, shop, queryset, elsewhere):
        """A reader that becomes a writer fails at once if another has written in between."""
        with shop.atomic():
            shop.seats.all().fenced_update(6, number=1)
            older = elsewhere(lambda: queryset.fenced_update(5, number=2))
            with pytest.raises(TimeoutError):
                older.result(0.2)
        with pytest.raises(StaleToken):
            older.result(30)
