"""Who waits, as anybody who asks the server can see it."""

import socket
import threading

import pytest

from distlock import Lock, LockLost, locks
from distlock.backends.database import advisory_locks
from distlock.types.lease import Claim, Owner, State, Waiting
from distlock.types.query import LockQuery
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.queue.engine import unhurried

HERE = socket.gethostname()


def pids(waiters):
    return [waiter.pid for waiter in waiters]


@unhurried
def test_they_are_seen_in_order_from_the_first_on(actor, using, name):
    """The first, who has come to the end of the server's queue, included."""
    held = actor("thread").take(name)
    line = []
    for place in range(1, 4):
        process = actor()
        line.append((process, process.lock(name)))
        line[-1] += (line[-1][1].start("acquire"),)
        eventually(lambda place=place: len(held.info().waiters or ()) == place)
    waiters = eventually(lambda: len(seen := held.info().waiters) == 3 and seen)
    assert pids(waiters) == [process.pid for process, *_ in line]
    assert {(waiter.host, waiter.thread) for waiter in waiters} == {(HERE, "MainThread")}
    held.release()
    for number, (_, lock, got) in enumerate(line, 1):
        assert got.result(PATIENCE)
        rest = [process.pid for process, *_ in line[number:]]
        eventually(lambda lock=lock, rest=rest: pids(lock.info().waiters) == rest)
        lock.release()
    assert Lock(name, using=using).info().waiters == ()


def test_how_long_they_have_waited_is_known(actor, name):
    held = actor("thread").take(name)
    for _ in range(2):
        actor().lock(name).start("acquire")
    both = eventually(lambda: len(seen := held.info().waiters) == 2 and seen)
    assert min(waiter.waited for waiter in both) >= 0
    before = {waiter.pid: waiter.waited for waiter in both}

    def longer():
        waiters = held.info().waiters
        return [now.waited > before[now.pid] + 0.5 for now in waiters] == [True, True]

    eventually(longer)


def test_a_list_shows_them_for_many_locks(actor, using, name):
    holder = actor("thread")
    names = [f"{name}:{number}" for number in range(3)]
    for each in names:
        holder.take(each)
    first, second = actor(), actor()
    first.lock(names[0]).start("acquire")
    second.lock(names[2]).start("acquire")

    def seen():
        return [pids(info.waiters) for info in locks[using].list(name)]

    eventually(lambda: seen() == [[first.pid], [], [second.pid]])

    def on_page():
        page = locks[using].page(LockQuery(search=name))
        return [len(info.waiters) for info in page.locks], page.counts.waiting

    eventually(lambda: on_page() == ([1, 0, 1], 2))


def test_a_name_that_is_anything_but_plain_is_read_as_it_is(actor, using, name):
    odd = "a */ b; % %s ' \" \\ é 🔒 ="
    held = actor("thread").take(name)
    child = actor()
    waiting = child.call(wait_as, odd, using, name)
    waiters = eventually(lambda: held.info().waiters)
    assert [waiter.thread for waiter in waiters] == [odd]
    held.release()
    assert waiting.result(PATIENCE) == [True]


def wait_as(thread_name, using, name):
    """Wait in a thread of that name."""
    got = []

    def wait():
        lock = Lock(name, using=using)
        got.append(lock.acquire(timeout=PATIENCE))
        lock.release()

    thread = threading.Thread(target=wait, name=thread_name)
    thread.start()
    thread.join()
    return got


@pytest.mark.parametrize("options", [{"wait": "poll"}], ids=["poll"])
def test_who_looks_now_and_then_is_not_claimed_to_be_known(actor, using, name, options):
    held = actor("thread").take(name)
    actor().lock(name).start("acquire")
    assert locks[using].capabilities.waiters is False
    assert held.info().waiters is None


def test_where_the_server_does_not_show_them_they_are_unknown(using, name, monkeypatch):
    """No error: what is shown to whom is the administrator's business."""
    native = type(locks[using].waits.locks)
    with Lock(name, using=using) as lock:
        monkeypatch.setattr(native, "comments", hidden)
        assert lock.info().waiters is None
        monkeypatch.setattr(native, "comments", forbidden)
        assert lock.info().waiters is None
        assert lock.info().state is State.HELD


def test_why_a_lock_is_lost_is_asked_without_a_look_at_who_waits(actor, using, name, monkeypatch):
    looks = []
    lock = Lock(name, using=using, owner="named")
    lock.acquire()
    actor().call(break_lock, using, name).result(PATIENCE)
    monkeypatch.setattr(locks[using].waits, "waiting", looks.append)
    with pytest.raises(LockLost):
        lock.verify()
    assert not looks


def break_lock(using, name):
    lock = locks[using]
    lock.force_release(name, lock.inspect(name).token)


def hidden(native):
    from distlock.backends.database.statements import Statement

    return Statement("SELECT '', 1.0")


def forbidden(native):
    from distlock.backends.database.statements import Statement

    return Statement("SELECT * FROM nobody_may_read_this")


@pytest.mark.parametrize("thread", ["", "MainThread", "a b*/c=d%", "🔒" * 60])
def test_a_comment_can_be_parsed_and_contains_nothing_special(thread):
    claim = Claim("x", Owner("key", "höst", 42, thread), 30.0)
    text = advisory_locks.comment("'dl:0'", claim, 1.5, first=True)
    assert text.isascii()
    assert "%" not in text
    assert text.count("*/") == 1
    assert len(text) < 900  # PostgreSQL shows 1,024 bytes of a statement
    seen = advisory_locks.parse_comment(f"{text}SELECT 1", 2.0)
    assert (seen.key, seen.first) == ("'dl:0'", True)
    assert isinstance(seen.who, Waiting)
    assert (seen.who.host, seen.who.pid, seen.who.waited) == ("höst", 42, 3.5)
    assert seen.who.thread[:20] == thread[:20]


@pytest.mark.parametrize(
    "text", ["", "SELECT 1", advisory_locks.MARK, f"{advisory_locks.FIRST}x y z*/"]
)
def test_what_is_no_such_comment_is_not_parsed(text):
    assert advisory_locks.parse_comment(text, 0.0) is None
