"""Hosts that load the application once and fork: what is begun while loading is the parent's."""

import os
import time

import pytest

from distlock import Lock, LockNotHeld
from distlock.recipes import Config, Election, Group, Progress
from tests.contract.watch import eventually
from tests.hosts.stage import await_cue, note
from tests.kinds import ONE_LEASE, SHARED

#: Its defaults: it loads the application in the master, and forks without Python's hooks.
UWSGI = "uwsgi", "--master", "--processes", "2"
#: seconds
LEASE = 3.0

pytestmark = pytest.mark.timeout(240)

# While the application is loaded


def use():
    with Lock("warm"):
        pass


def hold():
    use()
    global held, election, group, progress
    held, election, group = Lock("held"), Election("leader"), Group("members")
    held.acquire()
    election.campaign()
    group.join()
    progress = Progress("work", total=10).start()


def watch():
    global watching
    watching = Config("setting").watch(lambda value: note("seen", value.value, os.getpid()))


# In requests


def work(seconds):
    """Hold a lock for some time, or until a cue; tell when this is inside."""
    with Lock("stock", on_lost=lambda lease: note("lost")) as lock:
        note("in", os.getpid())
        if seconds == "cue":
            await_cue("leave")
        else:
            time.sleep(float(seconds))
        lock.verify()
        note("out", os.getpid())
    return os.getpid()


def look():
    """Tell what this process has of what was begun while it was loaded."""
    refused = []
    for leave in (held.release, election.resign):
        try:
            leave()
        except LockNotHeld:
            refused.append(leave.__name__)
    progress.advance()
    group.leave()
    return {
        "pid": os.getpid(),
        "held": held.held,
        "taken": held.acquire(blocking=False),
        "leading": election.leading,
        "joined": group.joined,
        "refused": refused,
        "members": len(group.members()),
        "works": Lock("other").acquire(),
    }


def pid():
    return os.getpid()


# The tests


@pytest.fixture
def kind():
    return "postgresql"


@pytest.fixture(autouse=True)
def backend(backend_settings, settings, kind):
    lease = {"OPTIONS": {"session_timeout": 4}} if kind in ONE_LEASE else {"LEASE": LEASE}
    settings.DISTLOCK = backend_settings(kind, **lease)


def outlasts_its_lease(name, since=0.0):
    """Return whether a lock is held for longer than its lease, after that many seconds."""
    info = Lock(name).info()
    return info.held_for is not None and info.held_for - since > info.lease


@pytest.mark.every_day_on("postgresql", "zookeeper")
@pytest.mark.parametrize("kind", SHARED)
def test_a_worker_of_uwsgi_keeps_a_lock_that_was_used_while_loading(host, kind):
    running = host(*UWSGI, loading="use")
    first = running.begin("work", seconds="cue")
    eventually(lambda: len(running.notes()) == 1)
    second = running.begin("work", seconds=0)
    eventually(lambda: outlasts_its_lease("stock"))
    running.cue("leave")
    assert first.result(60) != second.result(60)
    assert [line.split()[0] for line in running.notes()] == ["in", "out"] * 2


@pytest.mark.parametrize(
    "command",
    [
        (*UWSGI, "--threads", "2"),
        ("gunicorn", "--workers", "2", "-k", "gevent"),
        *(
            pytest.param(command, marks=pytest.mark.slow)
            for command in [
                ("uwsgi", "--master", "--threads", "4"),
                (*UWSGI, "--py-call-uwsgi-fork-hooks"),
                (*UWSGI, "--lazy-apps"),
                ("gunicorn", "--workers", "2"),
                ("gunicorn", "--workers", "2", "--preload"),
                ("gunicorn", "--workers", "2", "--threads", "2"),
                ("gunicorn", "--workers", "2", "--threads", "2", "--preload"),
            ]
        ),
    ],
    ids=" ".join,
)
def test_one_worker_at_a_time_is_inside(host, command):
    running = host(*command, loading="use")
    first = running.begin("work", seconds="cue")
    eventually(lambda: len(running.notes()) == 1)
    others = [running.begin("work", seconds=0.1) for _ in range(3)]
    eventually(lambda: outlasts_its_lease("stock"))
    assert len(running.notes()) == 1
    running.cue("leave")
    for one in (first, *others):
        one.result(60)
    words = [line.split() for line in running.notes()]
    assert [word for word, _ in words] == ["in", "out"] * 4
    assert all(words[place][1] == words[place + 1][1] for place in range(0, 8, 2))


@pytest.mark.parametrize(
    "command", [UWSGI, ("gunicorn", "--workers", "2", "--preload")], ids=lambda one: one[0]
)
def test_what_the_master_holds_is_not_its_workers(host, command):
    running = host(*command, loading="hold")
    before = Lock("held").info()
    seen = running.get("look")
    assert seen.pop("pid") != before.owner.pid
    assert seen == {
        "held": False,
        "taken": False,
        "leading": False,
        "joined": False,
        "refused": ["release", "resign"],
        "members": 1,
        "works": True,
    }
    eventually(lambda: outlasts_its_lease("held", before.held_for))
    assert Lock("held").info().token == before.token
    assert Election("leader").leader().owner.pid == before.owner.pid
    assert [member.owner.pid for member in Group("members").members()] == [before.owner.pid]
    assert Progress.get("work").state == "running"


def test_a_watch_of_the_master_goes_on_in_a_worker_with_its_first_request(host):
    config = Config("setting")
    config.set(1)
    running = host("uwsgi", "--master", "--processes", "1", loading="watch")
    worker = running.get("pid")
    eventually(lambda: f"seen 1 {worker}" in running.notes())
    config.set(2)
    eventually(lambda: f"seen 2 {worker}" in running.notes())
