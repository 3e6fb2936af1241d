"""How many statements a list takes does not depend on how much there is to list."""

import itertools

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from distlock import Lock
from distlock.conf import locks
from distlock.recipes import Queue, Semaphore
from tests.admin.family import NAME, SCENES
from tests.admin.seeding import copy_recipe, fill_queue, lock_many
from tests.admin.test_coordination import client_with, one  # noqa: F401 - a fixture
from tests.database.counting import statements

pytestmark = pytest.mark.once

FEW, MANY = 200, 2000
#: what begins the names of directories, if that is not what the addresses say
KINDS = {
    "doublebarrier": "double-barrier",
    "countdownlatch": "count-down-latch",
    "ratelimiter": "rate-limiter",
}
OF_LOCKS = ["", "?q=0", "?q=00001", "?q=no", "?after=default:0:a:0100", "?state=held", "?order=age"]
OF_RECIPES = ["", "?page=3", "?q=:1", "?q=nothing"]
OF_ITEMS = ["ready", "ready&order=oldest", "ready&after=60", "dead", "dead&after=60"]


@pytest.fixture
def sqlite_locks(sqlite, backend_settings, settings):
    """The locks in a database."""
    settings.DISTLOCK = backend_settings("sqlite")
    yield
    locks.close_all()
    backend_settings("sqlite")


@pytest.fixture
def costs(sqlite_locks):
    """``costs(client, address, ["?q=a"])``: how many statements each of these pages takes."""

    def ask(client, address, queries):
        return {query: count(client, address + query) for query in queries}

    def count(client, page):
        client.get(page)
        own = CaptureQueriesContext(connections["default"])
        with own, statements(of="distlock-ask") as seen:
            response = client.get(page)
        assert response.status_code == 200
        assert not response.context.get("problem")
        return len(own) + len(seen)

    return ask


def test_of_the_list_of_locks(costs, operator, url):
    names = (f"a:{number:04}" for number in itertools.count())
    with Lock("a", lease=600, renew=False):
        lock_many("default", "a", itertools.islice(names, FEW))
        few = costs(operator, url("list"), OF_LOCKS)
        lock_many("default", "a", itertools.islice(names, MANY - FEW))
        assert costs(operator, url("list"), OF_LOCKS) == few
    assert max(few.values()) < 20


def test_of_semaphores_among_the_locks(costs, operator, url):
    """Of some all are looked at, of many only those on the page."""
    with Semaphore("a", 2):
        copy_recipe("default", "semaphore", "a", (f"a:{number:04}" for number in range(MANY)))
        assert costs(operator, url("list"), [""])[""] < 100


@pytest.mark.parametrize("kind", SCENES)
def test_of_the_list_of_a_recipe(costs, client_with, kind):  # noqa: F811
    scene, names = SCENES[kind](), (f"{NAME}:{number}" for number in itertools.count(1000))
    client, address = client_with(f"view_{kind}"), reverse(f"admin:distlock_{kind}_changelist")
    copy_recipe("default", KINDS.get(kind, kind), NAME, itertools.islice(names, FEW))
    few = costs(client, address, OF_RECIPES)
    copy_recipe("default", KINDS.get(kind, kind), NAME, itertools.islice(names, MANY - FEW))
    assert costs(client, address, OF_RECIPES) == few
    scene.close()


def test_of_the_items_of_a_queue(costs, client_with):  # noqa: F811
    queue = Queue("letters", max_deliveries=1)
    queue.put_many([{"to": "ada"}] * 2)
    queue.get().nack(reason="no such mailbox")
    address, data = one("queue", "letters")
    pages = [f"?backend=default&name={data['name']}&state={page}" for page in OF_ITEMS]
    client = client_with("view_queue")
    fill_queue("default", "letters", FEW, FEW)
    few = costs(client, address, pages)
    fill_queue("default", "letters", MANY, 0)
    assert costs(client, address, pages) == few
