"""A process whose clock is an hour off, or in another time zone, takes part like any other.

The clock of the day is shifted where a Python program can read it: ``time.time`` and everything
built on it. Only the servers' clocks and the local clock that counts from the machine's start
decide about leases (``test_no_decision_reads_the_clock_of_the_day`` looks for others), so this
shift has to change nothing. What such a process shows to people is the server's time as well.
"""

import ast
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import distlock
from distlock import Lock
from distlock.concurrency.clock import clock
from tests.children import read_line, write_line
from tests.contract.actors import PATIENCE
from tests.faults.conftest import EAGER, renewed

HOUR = 3600
LEASE = 3  # seconds, of a lease that is to end
RENEWED = 12  # and of one that is not

#: modules of the package that may read the clock of the day, and what for
READERS = {
    "audit.py": "when somebody did something, and which entries are old, for people",
    "runtime/hold.py": "since when a lock is held, for people",
    "admin/locks.py": "when a lock was broken, for people",
    "recipes/cells.py": "for how long something is so, for people",
    "celery/messages.py": "the countdown to an eta, which Celery counts on this clock, too",
    "backends/zookeeper/tree.py": "since when a node is there, and a lock is held, for people",
    "backends/etcd/lock_keys.py": "since when a lock is held, for people: etcd does not tell",
    "backends/etcd/store.py": "since when a directory is empty; swept early, it is made anew",
    "records/seats.py": "since when a seat is held, for people, where the store does not tell",
    "recipes/candidacy.py": "since when a term goes, for people",
    "recipes/candidates.py": "since when and until when a term goes, for people",
    "recipes/counter.py": "when a counter or a latch was changed, for people",
    "recipes/rate_limiter.py": "which old grants become one, which makes them count longer",
    "recipes/event.py": "when a flag was set, for people",
    "recipes/log.py": "when a value was set or a message published, for people",
    "recipes/progress.py": "when a report was written, for people",
    "recipes/queue_items.py": "when an item was seen that cannot be read, for people",
    "recipes/queue_records.py": "when an item was put, for people",
    "backends/local_store.py": "revisions that outlive a restart",
    "backends/local.py": "since when a lock is held, for people, and tokens that outlive a restart",
}


def shift(seconds):
    """Let this process believe that it is later or earlier."""
    true = time.time
    time.time = lambda: true() + seconds
    time.time_ns = lambda: int(time.time() * 1e9)


def hold_shifted(using, name, seconds, lease, renew):
    shift(seconds)
    lock = Lock(name, using=using, lease=lease, renew=renew)
    lock.acquire()
    write_line("held", lock.token, clock() + lock.remaining)
    read_line()
    lock.verify()
    write_line(lock.info().since.isoformat())
    lock.release()
    write_line("released")


def try_shifted(using, name, seconds):
    shift(seconds)
    write_line("ready")
    read_line()
    write_line(Lock(name, using=using).acquire(blocking=False))
    lock = Lock(name, using=using)
    write_line("waiting")
    lock.acquire()
    write_line("held", clock(), lock.token)


SHIFTS = [
    pytest.param(HOUR, {"TZ": "America/Adak"}, id="fast-west"),
    pytest.param(-HOUR, {"TZ": "Pacific/Kiritimati"}, id="slow-east"),
]


@EAGER
@pytest.mark.slow
@pytest.mark.parametrize(("seconds", "env"), SHIFTS)
def test_a_holder_with_a_wrong_clock_keeps_its_lock(child, actor, using, name, seconds, env):
    holder = child(hold_shifted, using, name, seconds, RENEWED, True, env=env)
    assert holder.line().startswith("held ")
    other = actor("thread")

    def try_in_vain():
        assert not other.tries(name)

    renewed(other.lock(name), try_in_vain)
    holder.tell("go on")
    since = datetime.fromisoformat(holder.line())
    assert abs(datetime.now(UTC) - since) < timedelta(seconds=PATIENCE)
    assert holder.line() == "released"
    assert other.tries(name)


@pytest.mark.slow
@pytest.mark.parametrize(("seconds", "env"), SHIFTS)
def test_a_lease_taken_with_a_wrong_clock_ends_when_it_should(
    child, actor, using, name, seconds, env
):
    holder = child(hold_shifted, using, name, seconds, LEASE, False, env=env)
    _, token, deadline = holder.line().split()
    lock = actor("thread").lock(name)
    assert lock.acquire(timeout=PATIENCE)
    assert clock() >= float(deadline)
    assert lock.token > int(token)


@pytest.mark.slow
@pytest.mark.parametrize(("seconds", "env"), SHIFTS)
def test_a_waiter_with_a_wrong_clock_gets_the_lock_neither_early_nor_never(
    child, actor, using, name, seconds, env
):
    waiter = child(try_shifted, using, name, seconds, env=env)
    assert waiter.line() == "ready"
    deadline = clock() + LEASE
    held = actor("thread").take(name, lease=LEASE, renew=False)
    token = held.info().token
    waiter.tell("go on")
    said = waiter.line()
    assert said == "False" or clock() >= deadline
    if said == "False":
        assert waiter.line() == "waiting"
        _, got_at, got = waiter.line().split()
        assert float(got_at) >= deadline
        assert int(got) > token


@EAGER
@pytest.mark.slow
def test_a_jump_of_the_clock_while_holding_changes_nothing(actor, using, name, monkeypatch):
    lock = actor("thread").take(name, lease=RENEWED)
    true = time.time
    monkeypatch.setattr(time, "time", lambda: true() + HOUR)
    renewed(lock)
    lock.verify()
    monkeypatch.setattr(time, "time", lambda: true() - HOUR)
    renewed(lock)
    lock.verify()


def reads_the_clock_of_the_day(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, (ast.Name, ast.Attribute)):
            owner = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
            if (owner, node.attr) in {
                ("time", "time"),
                ("time", "time_ns"),
                ("datetime", "now"),
                ("datetime", "utcnow"),
                ("date", "today"),
                ("timezone", "now"),
            }:
                return True
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            return True
    return False


@pytest.mark.parametrize("kind", ["local"])
def test_no_decision_reads_the_clock_of_the_day(kind):
    package = Path(distlock.__file__).parent
    deciding = [
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if "management" not in path.parts and "commands" not in path.parts
    ]
    readers = {path for path in deciding if reads_the_clock_of_the_day(package / path)}
    assert readers == set(READERS)
