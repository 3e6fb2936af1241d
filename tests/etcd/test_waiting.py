"""Waiting in etcd: who is next, what wakes it, and what happens when nothing does."""

import threading

import pytest

from distlock import Lock, LockUnavailable, locks
from distlock.backends.etcd import contender, watches
from distlock.backends.etcd.connections import Connections, Unanswered
from distlock.backends.etcd.contender import EtcdContender
from distlock.backends.etcd.leases import Leases
from distlock.concurrency.clock import clock
from distlock.types.lease import Claim, State
from distlock.types.owners import current_owner
from tests.contract.actors import PATIENCE, answered
from tests.contract.watch import eventually, passed, waits


def waiting(lock, number=1, unless=None):
    """Wait until so many wait for a lock, as the cluster knows it, or until ``unless`` is done."""

    def wait():
        return len(locks[lock.using].inspect(lock.name).waiters) == number

    eventually(lambda: wait() or (unless is not None and unless.done()))


def gives_up(call):
    """Return whether ``call()`` ends without a lock; there may have been no answer in its time."""
    try:
        return call() is False
    except LockUnavailable:
        return True


@pytest.fixture
def held(using, name):
    """A lock that is held, by another client than the first."""
    lock = Lock(name, using="other")
    lock.acquire()
    yield lock
    if lock.held:
        lock.release()


def test_who_waits_goes_on_after_a_compaction(actor, using, held, etcd, name):
    wait = actor("thread", using).lock(name).start("acquire")
    waiting(held)
    for number in range(3):
        etcd.put("/compacted", str(number))
        etcd.compact()
    assert waits(wait)
    held.release()
    assert wait.result(PATIENCE)


def test_a_task_does_not_go_on_with_a_claim_that_an_abandoned_call_cancels(
    configure, actor, etcd, name, monkeypatch
):
    using, promote, stalled = configure(timeout=1), EtcdContender._promote, threading.Event()

    def stall(contender, deadline):
        if not stalled.is_set():
            stalled.set()
            passed(4)  # it is given up meanwhile
        return promote(contender, deadline)

    monkeypatch.setattr(EtcdContender, "_promote", stall)
    held = Lock(name, using="other")
    assert answered(held.acquire)
    wait = actor("task", using).lock(name).start("acquire", timeout=PATIENCE)
    eventually(lambda: wait.done() or len(answered(held.info).waiters) == 1)
    held.release()
    with pytest.raises(LockUnavailable):
        wait.result(PATIENCE)
    assert stalled.is_set()
    eventually(lambda: answered(held.info).state is State.FREE)


def test_who_begins_to_wait_after_a_compaction_is_woken(actor, using, held, etcd, name):
    etcd.put("/compacted")
    etcd.compact()
    wait = actor("thread", using).lock(name).start("acquire")
    waiting(held)
    held.release()
    assert wait.result(PATIENCE)


def test_who_waits_goes_on_after_the_network_broke(configure, actor, proxied, name):
    proxy = proxied("etcd")
    using = configure()
    held = Lock(name, using="other")
    held.acquire()
    wait = actor("thread", using).lock(name).start("acquire")
    waiting(held)
    proxy.cut()
    held.release()
    assert wait.result(PATIENCE)


def test_who_gives_up_takes_no_lock_from_another_of_its_process(actor, using, name, monkeypatch):
    """What it had for the lock, and could not use, is another lock's by then."""
    given_back, put, here = threading.Event(), Leases.put, threading.current_thread()

    def note(leases, lease, ttl, *deadline, reusable=True):
        put(leases, lease, ttl, *deadline, reusable=reusable)
        if reusable and threading.current_thread() is not here:
            given_back.set()

    first = Lock(name, using="other", at_least=PATIENCE)
    first.acquire()
    waiter = actor("task", using)
    waiter.lock(name).start("acquire")
    waiting(first)
    monkeypatch.setattr(Leases, "put", note)
    first.release()  # it stays taken, and the one who is woken looks in vain
    assert given_back.wait(PATIENCE)
    with Lock(f"{name}:another", using=using) as another:
        waiter.cancel()
        eventually(lambda: not locks[using].inspect(name).waiters)
        eventually(lambda: not locks[using].cleanup.pending)
        another.verify()


@pytest.fixture
def hintless():
    """``hintless(proxy)``: keep all requests for events back from the server."""
    ends = []

    def keep_back(proxy):
        def go_on(delay):
            while not over.is_set():
                if delay.kept_back.wait(0.1):
                    delay = next_one()

        def next_one():
            delay = proxy.delay(b"create_request")
            ends.append(delay.end)
            return delay

        over = threading.Event()
        ends.append(over.set)
        threading.Thread(target=go_on, args=(next_one(),)).start()

    yield keep_back
    for end in ends[::-1]:
        end()


@pytest.fixture
def never_looks(monkeypatch):
    """Who waits is woken by hints, and looks by itself only when its place is about to end."""
    monkeypatch.setattr(contender, "_LOOKS", 1.2)


@pytest.fixture
def late_watches(monkeypatch):
    """A watch begins some time after the look that it follows."""
    requests = watches.Watches._requests

    def late(self, followed):
        passed(0.03)
        return requests(self, followed)

    monkeypatch.setattr(watches.Watches, "_requests", late)


#: seconds; who is woken by no hint waits for longer, see never_looks()
STALL = 6.0


def longest_wait(using, name, disturb=None, seconds=0.0):
    """Let clients of their own take turns; return the longest wait for one, in seconds."""
    waits, over = [], clock() + seconds

    def take_turns(alias):
        lock = Lock(name, using=alias)
        while (clock() < over or len(waits) < 200) and max(waits, default=0.0) < STALL:
            before = clock()
            with lock:
                waits.append(clock() - before)

    threads = [threading.Thread(target=take_turns, args=(alias,)) for alias in using]
    for thread in threads:
        thread.start()
    while disturb is not None and any(thread.is_alive() for thread in threads):
        disturb()
    for thread in threads:
        thread.join()
    return max(waits)


@pytest.fixture
def crowd(configure, settings):
    """The aliases of six clients."""
    configure()
    aliases = [f"client-{number}" for number in range(6)]
    settings.DISTLOCK |= dict.fromkeys(aliases, settings.DISTLOCK["default"])
    return aliases


def test_no_wake_up_is_lost_in_a_crowd(crowd, never_looks, late_watches, name):
    assert longest_wait(crowd, name) < STALL


def test_who_waits_for_a_lock_that_stays_reserved_is_woken_when_that_ends(
    using, actor, never_looks, name
):
    first = Lock(name, using="other", at_least=2)
    first.acquire()
    wait = actor("thread", using).lock(name).start("acquire")
    waiting(first)
    before = clock()
    first.release()
    assert wait.result(PATIENCE)
    assert clock() - before < STALL


@pytest.mark.slow
def test_without_the_hint_with_which_a_watch_begins_wake_ups_are_lost(
    crowd, never_looks, late_watches, hintless_watches, name
):
    """So the tests beside it would see that."""
    assert longest_wait(crowd, name) > STALL


@pytest.mark.slow
def test_no_wake_up_is_lost_when_connections_break(crowd, never_looks, name, proxied, configure):
    proxy = proxied("etcd")

    def cut():
        passed(0.3)
        proxy.cut()

    assert longest_wait(crowd, name, cut, seconds=2 * STALL) < STALL


@pytest.mark.slow
def test_who_waits_looks_although_no_hint_comes(configure, actor, proxied, hintless, name):
    proxy = proxied("etcd")
    using = configure()
    held = Lock(name, using="other")
    held.acquire()
    hintless(proxy)
    wait = actor("thread", using).lock(name).start("acquire")
    waiting(held)
    held.release()
    assert wait.result(PATIENCE)


def test_who_has_lost_its_place_gets_another(actor, using, held, etcd, name):
    wait = actor("thread", using).lock(name).start("acquire")
    waiting(held)
    assert etcd.delete(f"/distlock/locks/{name}/w/") == 1
    held.release()
    assert wait.result(PATIENCE)


def test_who_waits_does_not_wait_for_one_that_has_given_up(actor, using, held, name):
    first = actor("thread", using).lock(name).start("acquire", timeout=1)
    waiting(held, unless=first)
    second = actor("thread", "third").lock(name).start("acquire")
    waiting(held, 2, unless=first)
    assert gives_up(lambda: first.result(PATIENCE))
    waiting(held, 1)
    held.release()
    assert second.result(PATIENCE)


def test_a_wait_that_ends_leaves_nothing_behind(actor, using, held, etcd, name):
    wait = actor("thread", using).lock(name).start("acquire", timeout=0.2)
    assert gives_up(lambda: wait.result(PATIENCE))
    eventually(lambda: len(etcd.keys(f"/distlock/locks/{name}/")) == 1)
    held.release()
    assert not etcd.keys(f"/distlock/locks/{name}/")


@pytest.mark.parametrize("owner", [None, pytest.param("order-42", marks=pytest.mark.slow)])
def test_who_does_not_wait_does_not_overtake_who_does(
    configure, actor, proxied, hintless, owner, name
):
    """The one that waits has not heard yet that the lock is free."""
    proxy = proxied("etcd")
    using = configure()
    held = Lock(name, using="other")
    held.acquire()
    hintless(proxy)
    wait = actor("thread", using).lock(name).start("acquire")
    waiting(held)
    held.release()
    taken = Lock(name, using="third", owner=owner).acquire(blocking=False)
    assert not taken
    assert wait.result(PATIENCE)


def test_a_waiters_place_ends_soon_however_long_its_lease_is(actor, using, held, etcd, name):
    wait = actor("thread", using).lock(name, lease=3600).start("acquire")
    waiting(held)
    (place,) = etcd.keys(f"/distlock/locks/{name}/w/").values()
    assert int(etcd.time_to_live(place["lease"])["grantedTTL"]) <= 10
    held.release()
    assert wait.result(PATIENCE)


def test_who_waits_does_not_get_a_lock_that_has_passed_on_under_its_owners_name(actor, using, name):
    """The holder's key that is watched is deleted, and another one is there."""
    held = Lock(name, using="other", owner="order-42", renew=False)
    held.acquire()
    wait = actor("thread", using).lock(name).start("acquire")
    waiting(held)
    taken_over = Claim(name, current_owner("order-42"), 30.0)
    lease = locks["third"].try_acquire(taken_over)
    assert lease.token > held.token
    assert waits(wait, 0.3)
    assert locks["third"].verify(lease)
    assert locks["third"].release(lease)
    assert wait.result(PATIENCE)


# What it costs, counted in requests and not in time


def test_taking_and_freeing_a_free_lock_takes_two_requests(using, requests, name):
    lock = Lock(name, using=using, lease=60)
    with lock:
        pass

    def cost():
        before = requests()
        for _ in range(10):
            with lock:
                pass
        return requests() - before

    assert any(cost() <= 20 for _ in range(5))  # what earlier tests have left may ask, too


def test_a_hand_over_costs_no_more_with_many_who_wait(configure, settings, requests, name):
    def costs_no_more(attempt):
        few, many = (
            cost_of_hand_over(configure, settings, requests, f"{name}:{attempt}:{number}", number)
            for number in (3, 12)
        )
        return many <= few + 2 and many <= 10

    assert any(map(costs_no_more, range(3)))  # who has waited for some seconds looks by itself


def cost_of_hand_over(configure, settings, requests, name, number):
    """Let so many clients wait for a lock, and return the requests for each that gets it."""
    configure()
    settings.DISTLOCK = {
        **settings.DISTLOCK,
        **{f"client-{each}": settings.DISTLOCK["default"] for each in range(number)},
    }
    served = []
    held = Lock(name)
    held.acquire()

    def take(using):
        with Lock(name, using=using):
            served.append(using)

    threads = []
    for each in range(number):
        threads.append(threading.Thread(target=take, args=(f"client-{each}",)))
        threads[-1].start()
        waiting(held, each + 1)
    before = requests()
    held.release()
    for thread in threads:
        thread.join(PATIENCE)
    assert served == [f"client-{each}" for each in range(number)]
    return (requests() - before) / number


def test_the_list_has_locks_that_are_held_and_none_that_are_only_waited_for(
    actor, using, held, backend, name
):
    wait = actor("thread", using).lock(name).start("acquire")
    waiting(held)
    held.release()
    assert wait.result(PATIENCE)
    assert [info.name for info in backend.list(name)] == [name]
    assert backend.inspect(name).state is State.HELD


# Answers that get lost: the server has carried out the request


@pytest.fixture
def lose(monkeypatch):
    """``lose(n, call)``: call it, and lose the answer to the n-th transaction that it asks for."""
    post = Connections.post

    def losing(number, call):
        own, asked = threading.get_ident(), []

        def posted(connections, path, *request):
            answer = post(connections, path, *request)
            if threading.get_ident() == own and path.endswith("/kv/txn"):
                asked.append(path)
                if len(asked) == number:
                    raise Unanswered(OSError("lost"), sent=True)
            return answer

        monkeypatch.setattr(Connections, "post", posted)
        return call()

    return losing


@pytest.mark.parametrize("number", range(1, 7))
def test_a_lost_answer_while_waiting_is_no_hold_too_many(
    configure, actor, lose, etcd, new_leases, held, name, number
):
    def wait():
        lock = Lock(name, using="default", lease=600)
        lose(number, lock.acquire)
        return lock.token, lock.release()

    waiter = actor("thread", "default").call(wait)
    waiting(held)
    behind = actor("thread", "third").lock(name).start("acquire")
    waiting(held, 2)
    token = held.token
    held.release()
    assert waiter.result(PATIENCE)[0] > token
    assert behind.result(PATIENCE)
    assert len(etcd.keys(f"/distlock/locks/{name}/")) == 1
    long = [one for one in new_leases() if etcd.time_to_live(one).get("grantedTTL") == "600"]
    assert not long


@pytest.mark.parametrize("number", range(1, 6))
def test_a_lost_answer_while_giving_up_leaves_no_place(lose, etcd, held, using, name, number):
    lock = Lock(name, using=using)
    assert gives_up(lambda: lose(number, lambda: lock.acquire(timeout=0.3)))
    eventually(lambda: len(etcd.keys(f"/distlock/locks/{name}/")) == 1)
    held.release()
    assert not etcd.keys(f"/distlock/locks/{name}/")
