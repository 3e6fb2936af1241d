"""ATOMIC_REQUESTS: each request runs in a transaction that ends after the view's locks are left."""

import asyncio

import pytest
from django.contrib.auth.models import Group
from django.db import connections
from django.test import AsyncClient, Client

from distlock import Lock, LockError, ReleasedInTransaction
from tests.contract.actors import PATIENCE
from tests.databases import publish


@pytest.fixture
def requests(kind, database, settings, name):
    """``requests(path)``: what a request for one of the views in urls.py is answered."""
    settings.ROOT_URLCONF = "tests.faults.urls"
    settings.ALLOWED_HOSTS = ["testserver"]
    publish(database, {"ATOMIC_REQUESTS": True})

    def request(path, **more):
        return Client().get(path, {"kind": kind, "name": name, **more})

    yield request
    publish(database, {"ATOMIC_REQUESTS": False})
    Group.objects.using(database).filter(name=name).delete()


def written(database, name):
    return Group.objects.using(database).filter(name=name).count()


def test_a_view_that_leaves_a_lock_inside_the_requests_transaction_is_warned(
    requests, database, name
):
    """The next holder would not see what was written under the lock."""
    with pytest.warns(ReleasedInTransaction, match="atomic"):
        assert requests("/locked/").content == b"written"
    assert written(database, name) == 1


@pytest.mark.filterwarnings("ignore::distlock.ReleasedInTransaction")
def test_a_lock_taken_in_a_view_excludes_others_until_it_is_left(requests, actor, using, name):
    other = actor("process")
    held, token = requests("/held/").content.decode().split()
    assert held == "True"
    lock = other.lock(name)
    assert lock.acquire(timeout=PATIENCE)
    assert lock.token > int(token)


@pytest.mark.filterwarnings("ignore::distlock.ReleasedInTransaction")
def test_a_view_that_fails_rolls_back_and_leaves_no_lock(requests, actor, database, name):
    with pytest.raises(ZeroDivisionError):
        requests("/held/", fail=1)
    assert written(database, name) == 0
    assert actor("thread").lock(name).acquire(timeout=PATIENCE)


def test_lock_atomic_in_such_a_view_is_refused_with_the_way_out(requests, actor, database, name):
    with pytest.raises(LockError, match="non_atomic_requests"):
        requests("/atomic/")
    assert written(database, name) == 0
    assert actor("thread").lock(name).acquire(timeout=PATIENCE)


def test_lock_atomic_works_in_a_view_that_is_exempt(requests, actor, database, name):
    assert requests("/exempt/").content == b"written"
    assert written(database, name) == 1
    assert actor("thread").tries(name)


def test_an_async_view_can_use_locks(kind, requests, database, actor, name):
    publish(database, {"ATOMIC_REQUESTS": False})  # Django refuses it for async views

    async def request():
        return await AsyncClient().get("/async/", {"kind": kind, "name": name})

    held, _ = asyncio.run(request()).content.decode().split()
    assert held == "True"
    assert actor("thread").tries(name)


def test_requests_at_the_same_time_take_turns(kind, requests, database, actor, using, name):
    publish(database, {"ATOMIC_REQUESTS": False})
    inside, seen = [], []

    def work():
        with Lock(name, using=using):
            inside.append(1)
            seen.append(len(inside))
            inside.pop()
        connections[database].close()

    calls = [actor("thread").call(work) for _ in range(8)]
    for call in calls:
        call.result(PATIENCE)
    assert seen == [1] * 8
