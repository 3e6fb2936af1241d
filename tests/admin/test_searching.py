"""One search box everywhere, and links from what is shown to what is known of it."""

import re

import pytest
from django.urls import reverse

from distlock import Lock
from distlock.conf import locks
from distlock.recipes import Election, Progress
from tests.admin import holders
from tests.admin.family import stand
from tests.contract.watch import eventually


@pytest.fixture(params=["mariadb", "postgresql", "zookeeper", "etcd", "sqlite", "local"])
def backend(request, backend_settings, settings):
    settings.DISTLOCK = backend_settings(request.param)
    yield locks["default"]
    locks.close_all()


@pytest.fixture
def find(operator, url):
    """``find("7f3a")``: the names in the list that a search leaves."""

    def names(search):
        page = operator.get(url("list"), {"q": search})
        return [row.info.name for row in page.context["overview"].rows]

    return names


def test_everything_that_is_shown_of_a_lock_finds_it(backend, find):
    other = Lock("other")
    with Lock("stock", description="Celery task shop.restock[7f3a-9]") as lock, other:
        owner = backend.inspect("stock").owner
        assert find("TOCK") == ["stock"]
        assert find("restock[7f3a") == ["stock"]
        same = ["other"] if other.token == lock.token else []  # taken in one millisecond
        assert find(str(lock.token)) == [*same, "stock"]
        for search in (owner.host, f"{owner.host}:{owner.pid}:", owner.thread, str(owner)):
            assert find(search) == ["other", "stock"], search


@pytest.mark.parametrize("backend", ["mariadb", "postgresql", "zookeeper", "etcd"], indirect=True)
def test_a_process_is_found_by_what_it_holds_and_what_it_waits_for(backend, find, holder, child):
    holder("taken")
    mine = child(holders.hold, "default", ["mine"], {})
    mine.line()
    waiter = child(holders.wait_for, "default", "taken")
    waiter.line()
    (waiting,) = eventually(lambda: backend.inspect("taken").waiters)
    # The server does not show who waits in the moment between two looks of the first in line.
    assert eventually(lambda: find(f"{waiting.host}:{waiter.pid}:")) == ["taken"]
    assert find(f"{waiting.host}:{mine.pid}:") == ["mine"]


def test_each_process_on_the_list_leads_to_what_it_holds(local, operator, url, taken):
    taken("one", "two")
    owner = local.inspect("one").owner
    page = operator.get(url("list")).content.decode()
    link = f'href="{url("list")}?q={owner.host}:{owner.pid}:"'
    assert page.count(link) == 2


def test_what_a_lock_shows_leads_to_what_is_known_of_it(local, operator, url, taken):
    taken("one", description="restock[7f3a]")
    owner = local.inspect("one").owner
    page = operator.get(url("lock"), {"backend": "default", "name": "one"}).content.decode()
    for query in (
        f"host={owner.host}",
        f"q={owner.host}:{owner.pid}:",
        f"q={owner.host}%3A{owner.pid}%3A{owner.thread}",
        "q=restock%5B7f3a%5D",
        "backend=default",
    ):
        assert f'href="{url("list")}?{query}"' in page, query


def test_who_may_not_see_locks_is_led_nowhere(local, client_of):
    """Processes are shown on the pages of elections, too."""
    close = stand(Election("one", "ada"), Election("one", "bob"))
    try:
        address = reverse("admin:distlock_election_changelist")
        text = client_of("observer").get(address).content.decode()
    finally:
        close()
    assert "heldlock" not in text
    assert re.search(r"<bdi><bdi>\S+</bdi>:\d+</bdi>", text)


# The coordination family


@pytest.fixture
def progress(local):
    work = Progress("import", total=3).start()
    yield Progress.get("import")
    work.finish()


def listed(client, search):
    page = client.get(reverse("admin:distlock_progress_changelist"), {"q": search})
    return [row.name for row in page.context["overview"].rows]


def test_a_recipe_is_found_by_its_name_and_by_what_its_row_shows(progress, client_of):
    client = client_of("coordinator")
    owner = progress.owner
    for search in ("IMP", f"{owner.host}:{owner.pid}:", owner.thread):
        assert listed(client, search) == ["import"], search
    assert listed(client, "export") == []


def test_a_search_never_finds_what_one_may_not_see(local, client_of):
    with pytest.raises(ZeroDivisionError), Progress("import", total=3):
        raise ZeroDivisionError("password=secret")
    for user in ("observer", "coordinator"):
        assert listed(client_of(user), "password") == []


def test_the_same_search_is_offered_where_one_may_look(local, operator, client_of, url):
    text = operator.get(url("list"), {"q": "7f3a"}).content.decode()
    assert "Search for the same in:" not in text  # the operator may see nothing else
    address = reverse("admin:distlock_queue_changelist")
    text = client_of("observer").get(address, {"q": "7f3a"}).content.decode()
    assert f'href="{reverse("admin:distlock_election_changelist")}?q=7f3a"' in text
    assert "heldlock" not in text
