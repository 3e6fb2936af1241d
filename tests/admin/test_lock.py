"""The page about one lock: what is known, what it means, and the command that does the same."""

import json
import re
import shlex
import socket
import subprocess
import sys
from datetime import timedelta

import pytest
from django.core.management import call_command
from django.utils import timezone
from kazoo.client import KazooClient

from distlock import Lock
from distlock.conf import locks
from distlock.models import DatabaseLock
from distlock.types.lease import State
from tests.admin import holders
from tests.contract.watch import eventually
from tests.databases import DATABASES

KINDS = ["local", "sqlite", "mariadb", "postgresql", "zookeeper", "etcd"]


@pytest.fixture
def look(operator, url):
    """``look("name")``: the page about that lock; its text."""

    def get(name, backend="default", status=200):
        page = operator.get(url("lock"), {"backend": backend, "name": name})
        assert page.status_code == status
        page.text = page.content.decode()
        return page

    return get


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def backend(kind, backend_settings, settings):
    """One backend of every kind in turn."""
    # Its session must not end while a page is made on a machine that is busy.
    options = {"session_timeout": 8} if kind == "zookeeper" else {}
    settings.DISTLOCK = backend_settings(kind, OPTIONS=options)
    yield locks["default"]
    locks.close_all()


def test_it_tells_all_that_is_known_of_the_holder(backend, look):
    lock = Lock("invoice:42", description="charging")
    with lock:
        page, info = look("invoice:42"), backend.inspect("invoice:42")
    for shown in ("invoice:42", "charging", info.owner.host, info.owner.thread):
        assert shown in page.text
    assert f">{info.owner.pid}</a></dd>" in page.text
    assert f'dl-mono">{info.token}</dd>' in page.text
    assert "It is held by the process that shows this page." in page.text


def test_a_lock_that_is_free_may_be_looked_at_too(backend, look, url):
    page = look("never taken")
    assert "Nobody holds this lock." in page.text
    assert url("release") not in page.text


@pytest.mark.parametrize(
    ("name", "backend"), [("", "default"), ("x" * 565, "default"), ("x", "elsewhere")]
)
def test_what_cannot_be_a_lock_is_not_found(local, look, name, backend):
    look(name, backend, status=404)


@pytest.mark.parametrize("name", [" x", "x\0", "a\nb"])
def test_what_no_code_can_call_a_lock_may_still_be_looked_at(kind, backend, look, name):
    """PostgreSQL has no text with a zero character in it."""
    refused = kind == "postgresql" and "\0" in name
    assert ("Cannot be asked" if refused else "Nobody holds this lock.") in look(name).text


def test_a_named_owner_is_called_by_the_name(local, look):
    with Lock("order:77", owner="checkout-77"):
        assert "checkout-77" in look("order:77").text


# What it means


def test_a_hold_that_was_renewed_in_time(local, look, taken):
    taken("a", lease=30)
    page = look("a")
    assert "its process was alive then" in page.text
    assert "unless it is renewed" in page.text


def test_a_hold_that_should_have_been_renewed(sqlite, backend_settings, settings, look, taken):
    """It was last renewed seven and a half of its ten minutes ago."""
    settings.DISTLOCK = backend_settings("sqlite")
    taken("a", lease=600)
    DatabaseLock.objects.update(expires_at=timezone.now() + timedelta(seconds=150))
    page = look("a")
    assert "Ends soon" in page.text
    assert re.search(r"It was taken or renewed 7 min \d+ s ago and should have been", page.text)


def test_a_hold_that_is_not_renewed(local, look, taken):
    taken("a", lease=600, renew=False)
    page = look("a")
    assert "and is not renewed" in page.text
    assert "should have been renewed" not in page.text


@pytest.mark.parametrize("options", [{"lease": 6}, {"lease": 6, "renew": False}, {"lease": 900}])
def test_a_lease_of_any_length_does_not_end_soon_while_all_is_well(local, look, taken, options):
    taken("a", **options)
    assert look("a").context["row"].label == "Held"


def test_an_expired_hold(local, look, expired, url):
    expired("a")
    page = look("a")
    assert "a sweep clears it" in page.text
    assert url("release") in page.text


def test_a_lock_that_was_left_and_stays_taken(local, look):
    with Lock("a", at_least=600):
        pass
    page = look("a")
    assert "Released, still reserved" in page.text
    assert "Its holder has released it" in page.text


def test_a_backend_that_is_gone_while_this_process_holds_a_lock_there(
    proxied, backend_settings, settings, look, taken
):
    network = proxied("mariadb")
    settings.DISTLOCK = backend_settings("mariadb")
    taken("mine", lease=60)
    network.refuse()
    page = look("mine")
    assert "Suspended" in page.text
    assert "relies on it for another" in page.text
    assert "Nobody holds" not in look("other").text
    network.heal()
    locks.close_all()


def test_a_hold_in_zookeeper_tells_of_its_session(
    zookeeper, backend_settings, settings, look, taken
):
    settings.DISTLOCK = backend_settings("zookeeper", OPTIONS={"session_timeout": 8})
    taken("renewed", lease=None)
    page = look("renewed")
    assert "Session timeout" in page.text
    assert "It is not renewed" not in page.text
    taken("not renewed", lease=None, renew=False)
    assert "It is not renewed: its process leaves it at the latest 8 s" in look("not renewed").text


def test_nothing_is_said_of_renewals_where_a_node_of_zookeeper_says_nothing(
    zookeeper, backend_settings, settings, look, taken
):
    settings.DISTLOCK = backend_settings("zookeeper", OPTIONS={"session_timeout": 8})
    taken("by hand", lease=None)
    kazoo = KazooClient(zookeeper.hosts)
    kazoo.start()
    try:
        path = f"{locks['default'].options.root}/by hand"
        kazoo.set(f"{path}/{kazoo.get_children(path)[0]}", b"written by hand")
    finally:
        kazoo.stop()
        kazoo.close()
    page = look("by hand")
    assert "as long as the session" in page.text
    assert "It is not renewed" not in page.text


# Stored record


@pytest.mark.parametrize("kind", DATABASES)
def test_the_row_is_shown_as_it_is(backend, look):
    """Of a free lock, too: who had it last is there."""
    lock = Lock("invoice:42", description="charging")
    with lock:
        row = backend.stored("invoice:42")
        said = f"charging (at {lock.info().call_site})"
        assert (row["token"], row["description"]) == (str(lock.token), said)
        assert row["nonce"] in look("invoice:42").text
    assert look("invoice:42").context["detail"].stored["description"] == said
    assert "charging" in look("invoice:42").text
    assert "Stored record" not in look("never taken").text


# The command line


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "it's; rm -rf $HOME `x`",
        "--token=1",
        "two  spaces",
        "$'x'",
        "bidi \u202e \u2066",
        'quo"tes \\ and',
        "ключ 鍵 🔑",
    ],
)
def test_its_command_names_exactly_this_hold_in_a_shell(local, look, taken, name):
    """As bash reads it, whatever the name is."""
    (lock,) = taken(name)
    page = look(name)
    line = page.context["detail"].release_line
    program = "import json, sys; print(json.dumps(sys.argv[1:]))"
    command = f"{sys.executable} -c '{program}' {line.removeprefix('manage.py ')}"
    ran = subprocess.run(["bash", "-c", command], capture_output=True, check=True)
    given = json.loads(ran.stdout)
    assert given[:4] == ["locks", "release", "--using=default", f"--token={lock.token}"]
    assert given[-1] == name


def test_its_command_does_the_same(sqlite, backend_settings, settings, look, taken):
    settings.DISTLOCK = backend_settings("sqlite")
    taken("a b")
    line = look("a b").context["detail"].release_line
    call_command(*shlex.split(line)[1:], "--yes")
    assert locks["default"].inspect("a b").state is State.FREE


# Others who wait


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options"),
    [("zookeeper", {"session_timeout": 8}), ("etcd", {})],
    ids=["zookeeper", "etcd"],
)
def test_waiters_stand_in_line(kind, options, backend_settings, settings, look, child):
    settings.DISTLOCK = backend_settings(kind, OPTIONS=options)
    with Lock("feed"):
        pids = []
        for place in range(3):
            waiter = child(holders.wait_for, "default", "feed")
            waiter.line()
            pids.append(waiter.pid)
            eventually(lambda place=place: len(locks["default"].inspect("feed").waiters) > place)
        page = look("feed")
        assert [waiter.pid for waiter in page.context["info"].waiters] == pids
    locks.close_all()


def test_threads_behind_the_waiter_of_their_process_are_counted(
    postgresql, backend_settings, settings, look, operator, url, child
):
    settings.DISTLOCK = backend_settings("postgresql")
    with Lock("feed"):
        crowd = child("tests.commands.processes:crowd", "feed", 3)
        page = eventually(lambda: (page := look("feed")) and "3 in 1 process" in page.text and page)
        assert f"2 more in <bdi>{socket.gethostname()}</bdi>:{crowd.pid}<" in page.text
        # The first in line asks now and then, and is not seen in between.
        listed = eventually(
            lambda: (
                ">3 in 1 process<" in (text := operator.get(url("list")).content.decode()) and text
            )
        )
        assert "<dt>Waiting</dt><dd>3</dd>" in listed
    assert crowd.line() == "done"
    locks.close_all()


def test_waiters_in_a_database_are_told_with_their_patience(
    mariadb, backend_settings, settings, look, child
):
    settings.DISTLOCK = backend_settings("mariadb")
    with Lock("feed"):
        waiter = child(holders.wait_for, "default", "feed")
        waiter.line()
        # The first in line asks now and then, and is not seen in between.
        page = eventually(lambda: (page := look("feed")).context["info"].waiters and page)
        assert [waiting.pid for waiting in page.context["info"].waiters] == [waiter.pid]
        assert re.search(r"for \d+ s", page.text)
    locks.close_all()
