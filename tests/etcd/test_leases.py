"""The leases of the cluster that locks are bound to: how many there are, and when they end."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from distlock import Lock, LockLost, LockUnavailable, locks
from distlock.backends.etcd.client import EtcdClient
from distlock.concurrency.clock import clock
from distlock.types.lease import Claim, State
from distlock.types.owners import current_owner
from tests.contract.actors import PATIENCE
from tests.contract.forks import forked
from tests.contract.watch import Once, eventually, passed, steadily
from tests.servers.etcd import Etcd


def lease_of(etcd, name, lock=None):
    """Return the id of the lease of the holder's key; LockLost if ``lock``'s has ended."""
    keys = etcd.keys(f"/distlock/locks/{name}/h/")
    if lock is not None and not keys:
        lock.check()
    (key,) = keys.values()
    return key["lease"]


def test_a_lock_that_is_taken_again_soon_has_the_same_lease(using, etcd, new_leases, name):
    leases = set()
    for _ in range(5):
        with Lock(name, using=using):
            leases.add(lease_of(etcd, name))
    assert len(leases) == 1
    assert new_leases() == leases


def test_two_holds_have_two_leases(using, etcd, name):
    with Lock(f"{name}:1", using=using), Lock(f"{name}:2", using=using):
        assert lease_of(etcd, f"{name}:1") != lease_of(etcd, f"{name}:2")


def test_a_lease_that_is_no_longer_fresh_is_used_no_more(using, etcd, name):
    """The holder relies on a lease from when it was granted."""

    def attempt(lease):
        own = f"{name}:{lease}"
        with Lock(own, using=using, lease=lease) as lock:
            first = lease_of(etcd, own, lock)
        passed(0.3 * lease)
        begun_at = clock()
        with Lock(own, using=using, lease=lease) as lock:
            assert lease_of(etcd, own, lock) != first
            remaining = lock.remaining
            assert clock() + remaining > begun_at + 0.8 * lease

    steadily(attempt, 2, 10)


def test_a_long_lease_ends_with_its_hold(using, new_leases, name):
    with Lock(name, using=using, lease=3600):
        assert new_leases()
    assert not new_leases()


def test_the_end_of_a_long_lease_is_waited_for_no_longer_than_for_the_answer(
    proxied, configure, new_leases, name
):
    proxy = proxied("etcd")
    backend = locks[configure()]
    lease = backend.try_acquire(Claim(name, current_owner(), 600.0))
    delay = proxy.delay(b"lease/revoke")
    later = threading.Timer(5, delay.end)
    later.start()
    assert backend.release(lease, clock() + 1)
    assert new_leases()
    later.cancel()
    delay.end()


def test_tries_in_vain_leave_one_lease(using, etcd, new_leases, name):
    with Lock(name, using="other"):
        for _ in range(5):
            assert not Lock(name, using=using).acquire(blocking=False)
        assert len(new_leases() - {lease_of(etcd, name)}) == 1


def test_the_child_of_a_fork_uses_no_lease_of_its_parent(using, etcd, name, way):
    with Lock(f"{name}:1", using=using):
        pass
    forked(Lock(f"{name}:2", using=using).acquire, way=way)
    with Lock(f"{name}:1", using=using):
        assert lease_of(etcd, f"{name}:1") != lease_of(etcd, f"{name}:2")


def test_a_lease_that_was_kept_and_is_gone_does_no_harm(using, etcd, name):
    with Lock(name, using=using):
        gone = lease_of(etcd, name)
    etcd.revoke(gone)
    with Lock(name, using=using) as lock:
        lock.verify()
        assert lease_of(etcd, name) != gone


@pytest.mark.parametrize("at_least", [None, 600])
def test_a_lease_that_an_operator_has_ended_is_lost(configure, etcd, name, at_least):
    using = configure(entry={"LEASE": 20 * PATIENCE, "RENEW": 0.2})
    on_lost = Once()
    lock = Lock(name, using=using, on_lost=on_lost, at_least=at_least)
    lock.acquire()
    token = lock.token
    etcd.revoke(lease_of(etcd, name))
    (lost,) = on_lost.wait()
    assert lost.token == token
    with pytest.raises(LockLost):
        lock.check()
    with Lock(name, using="other") as successor:
        assert successor.token > token


def test_other_holds_are_renewed_though_the_lease_of_one_was_ended(configure, etcd, name):
    using = configure(entry={"LEASE": 30, "RENEW": 0.2})
    held = [Lock(f"{name}:{number}", using=using) for number in range(3)]
    for lock in held:
        lock.acquire()
    before = [lock.info().renewed_at for lock in held]
    etcd.revoke(lease_of(etcd, f"{name}:1"))
    eventually(lambda: not held[1].held)
    for number in (0, 2):
        eventually(lambda n=number: held[n].info().renewed_at > before[n])
        held[number].release()


def test_a_lease_that_ends_while_it_is_renewed_is_lost_and_no_other(configure, proxied, etcd, name):
    proxy = proxied("etcd")
    backend = locks[configure()]
    owner = current_owner()
    lost, kept = (backend.try_acquire(Claim(f"{name}:{n}", owner, 30.0)) for n in (1, 2))
    delay = proxy.delay(b"kv/txn")
    with ThreadPoolExecutor() as pool:
        renewing = pool.submit(backend.renew, [lost, kept])
        assert delay.kept_back.wait(PATIENCE)  # the leases have been kept alive by now
        etcd.revoke(lease_of(etcd, lost.name))
        delay.end()
        assert renewing.result() == {lost.nonce: False, kept.nonce: True}


def test_a_late_renewal_does_not_bind_a_hold_to_the_lease_that_it_had(
    configure, proxied, etcd, name
):
    """A renewal is under way while the owner enters its hold again, for longer."""
    proxy = proxied("etcd")
    backend = locks[configure()]
    lease = backend.try_acquire(Claim(name, current_owner(), 30.0))
    longer = replace(lease, claim=replace(lease.claim, duration=120.0))
    renewal = proxy.delay(b"kv/txn")
    with ThreadPoolExecutor() as pool:
        renewing = pool.submit(backend.renew, [lease])
        assert renewal.kept_back.wait(PATIENCE)
        end_of_the_first = proxy.delay(b"lease/revoke")
        prolonging = pool.submit(backend.renew, [longer])
        assert end_of_the_first.kept_back.wait(PATIENCE)
        renewal.end()
        assert renewing.result() == {lease.nonce: True}
        end_of_the_first.end()
        assert prolonging.result() == {lease.nonce: True}
    assert int(etcd.time_to_live(lease_of(etcd, name))["grantedTTL"]) == 120
    assert backend.renew([longer]) == {lease.nonce: True}
    assert backend.release(longer)


def test_a_longer_lease_whose_answer_was_lost_is_kept_alive(configure, proxied, etcd, name):
    proxy = proxied("etcd")
    backend = locks[configure()]
    lease = backend.try_acquire(Claim(name, current_owner(), 30.0))
    first = lease_of(etcd, name)
    longer = replace(lease, claim=replace(lease.claim, duration=120.0))
    delay = proxy.delay(b"kv/txn")
    with ThreadPoolExecutor() as pool:
        prolonging = pool.submit(backend.renew, [longer], clock() + 3)
        assert delay.kept_back.wait(PATIENCE)
        proxy.drop_replies()
        delay.end()
        with pytest.raises(LockUnavailable):
            prolonging.result()
    proxy.heal()
    assert (second := lease_of(etcd, name)) != first
    passed(1.5)
    before = int(etcd.time_to_live(second)["TTL"])
    assert backend.renew([lease]) == {lease.nonce: True}
    assert lease_of(etcd, name) == second
    assert int(etcd.time_to_live(second)["TTL"]) > before
    assert backend.release(lease)


def test_a_hold_ends_before_its_lease_does(using, etcd, name):

    def attempt(seconds):
        lock = Lock(f"{name}:{seconds}", using=using, lease=seconds, renew=False)
        lock.acquire()
        lease = lease_of(etcd, lock.name, lock)

        def has_ended():
            has_ended = int(etcd.time_to_live(lease).get("TTL", 0)) < 0
            assert not (has_ended and lock.held)  # looked at in this order
            return has_ended

        eventually(has_ended)
        assert Lock(lock.name, using="other").acquire(timeout=PATIENCE)

    steadily(attempt, 2, 10)


def test_at_least_goes_on_for_so_long_after_the_last_renewal_and_not_much_longer(
    backend, etcd, name
):
    """A lease of 600 s for a hold that lasts for 30 s from now would outlive its process."""
    lease = backend.try_acquire(Claim(name, current_owner(), 30.0, at_least=600.0))
    assert int(etcd.time_to_live(lease_of(etcd, name))["grantedTTL"]) == 600
    assert backend.renew([lease]) == {lease.nonce: True}
    assert int(etcd.time_to_live(lease_of(etcd, name))["grantedTTL"]) <= 60
    assert backend.inspect(name).token == lease.token
    assert backend.renew([lease.lasting(500.0)]) == {lease.nonce: True}
    assert int(etcd.time_to_live(lease_of(etcd, name))["grantedTTL"]) == 500
    assert backend.inspect(name).token == lease.token
    assert backend.release(lease)


def test_a_lease_of_another_length_is_had_though_an_answer_was_lost(configure, proxied, etcd, name):
    """Also if the key was written meanwhile, as by a request that nobody waited for."""
    proxy = proxied("etcd")
    backend = locks[configure()]
    lease = backend.try_acquire(Claim(name, current_owner(), 30.0))
    lost = proxy.lose_reply(to=b"kv/txn")
    assert backend.renew([lease.lasting(100.0)]) == {lease.nonce: True}
    assert lost.is_set()
    assert int(etcd.time_to_live(lease_of(etcd, name))["grantedTTL"]) == 100
    (key,) = etcd.keys(f"/distlock/locks/{name}/h/")
    etcd.put(key, "{}", lease_of(etcd, name))
    answers = [backend.renew([lease.lasting(300.0)]) for _ in range(2)]
    assert answers == [{}, {lease.nonce: True}]
    assert int(etcd.time_to_live(lease_of(etcd, name))["grantedTTL"]) == 300
    assert backend.inspect(name).token == lease.token
    etcd.delete(key)
    assert backend.renew([lease.lasting(600.0)]) == {lease.nonce: False}


def test_a_cancelled_claim_leaves_neither_key_nor_lease(backend, etcd, new_leases, name):
    claim = Claim(name, current_owner(), 30.0)
    backend.try_acquire(claim)
    backend.cancel(claim)
    assert not new_leases()
    assert not etcd.keys(f"/distlock/locks/{name}/")


@pytest.fixture
def late_refusal(monkeypatch):
    """An attempt for a lock that is held; its answer is kept back until ``end()``."""

    class Late:
        def __init__(self):
            self.answered, self._go_on, self._pool = (
                threading.Event(),
                threading.Event(),
                ThreadPoolExecutor(),
            )

        def attempt(self, backend, claim):
            def txn(client, compare, *others, **options):
                reply = original(client, compare, *others, **options)
                if compare and not self.answered.is_set():
                    self.answered.set()
                    assert self._go_on.wait(PATIENCE)
                return reply

            original = EtcdClient.txn
            monkeypatch.setattr(EtcdClient, "txn", txn)
            attempt = self._pool.submit(backend.try_acquire, claim)
            assert self.answered.wait(PATIENCE)
            return attempt

        def end(self):
            self._go_on.set()
            self._pool.shutdown()

    late = Late()
    yield late
    late.end()


@pytest.mark.parametrize("has_failed", [False, True], ids=["under way", "failed"])
def test_a_lease_that_a_cancel_ends_is_used_for_no_other_hold(
    configure, proxied, etcd, late_refusal, new_leases, name, has_failed
):
    """The answer of the cancelled attempt comes while its lease is about to be ended."""
    proxy = proxied("etcd")
    backend, other = locks[configure()], locks["other"]
    claim = Claim(name, current_owner(), 30.0)
    held = other.try_acquire(Claim(name, current_owner(), 30.0))
    attempt = late_refusal.attempt(backend, claim)
    (named,) = new_leases() - {lease_of(etcd, name)}
    delay = proxy.delay(b"lease/revoke")
    with ThreadPoolExecutor() as pool:
        cancelling = pool.submit(backend.cancel, claim, clock() + (3 if has_failed else PATIENCE))
        assert delay.kept_back.wait(PATIENCE)
        if has_failed:
            with pytest.raises(LockUnavailable):
                cancelling.result(PATIENCE)
        late_refusal.end()
        assert attempt.result(PATIENCE) is None
        lease = backend.try_acquire(Claim(f"{name}:another", current_owner(), 30.0))
        uses = lease_of(etcd, lease.name)
        delay.end()
        if not has_failed:
            cancelling.result(PATIENCE)
    backend.cancel(claim)  # it is repeated later
    assert backend.verify(lease)
    assert uses != named
    assert backend.release(lease)
    assert other.release(held)


def test_a_cancel_that_failed_ends_the_lease_when_it_is_repeated(
    configure, proxied, new_leases, name
):
    proxy = proxied("etcd")
    backend = locks[configure()]
    claim = Claim(name, current_owner(), 30.0)
    backend.try_acquire(claim)
    delay = proxy.delay(b"lease/revoke")
    with pytest.raises(LockUnavailable):
        backend.cancel(claim, clock() + 3)
    assert new_leases()
    backend.cancel(claim)
    delay.end()


def test_a_break_whose_answer_was_lost_ends_no_lease_of_another_hold(
    backend, etcd, monkeypatch, name
):
    """The holder has left the lock meanwhile, and its lease is another lock's."""
    lease = backend.try_acquire(Claim(name, current_owner(), 30.0))
    used, txn, others = lease_of(etcd, name), EtcdClient.txn, []

    def late(client, compare, *parts, **options):
        if compare:
            monkeypatch.setattr(EtcdClient, "txn", txn)
            assert backend.release(lease)
            others.append(backend.try_acquire(Claim(f"{name}:2", current_owner(), 30.0)))
        reply = txn(client, compare, *parts, **options)
        return replace(reply, repeated=bool(compare))

    monkeypatch.setattr(EtcdClient, "txn", late)
    locks["other"].force_release(name, lease.token)
    (another,) = others
    assert lease_of(etcd, another.name) == used
    assert backend.release(another)


@pytest.mark.parametrize("number", [1, 3])
def test_a_place_in_the_queue_is_had_though_leases_that_were_kept_are_gone(
    using, etcd, new_leases, name, number
):
    leave_dead_leases(using, etcd, new_leases, name, number)
    with Lock(name, using="other"):
        assert not Lock(name, using=using).acquire(timeout=0.1)


def test_a_lock_is_had_though_several_leases_that_were_kept_are_gone(using, etcd, new_leases, name):
    leave_dead_leases(using, etcd, new_leases, name, 3)
    with Lock(name, using=using, lease=10) as lock:
        lock.verify()


def leave_dead_leases(using, etcd, new_leases, name, number):
    """Have the first client keep leases that have ended; they are as long as those of places."""
    made = [Lock(f"{name}:{one}", using=using, lease=10) for one in range(number)]
    for lock in made:
        lock.acquire()
    for lock in made:
        lock.release()
    for lease in new_leases():
        etcd.revoke(lease)


def test_a_broken_hold_leaves_no_lease(using, new_leases, name):
    lock = Lock(name, using="other")
    lock.acquire()
    assert Lock(name, using=using).force_release(lock.token)
    assert not new_leases()


def test_a_lock_that_is_left_before_its_time_is_free_when_that_is_over(using, etcd, name):
    before = clock()
    with Lock(name, using=using, at_least=2):
        pass
    state = Lock(name, using=using).info().state
    assert state is State.HELD or clock() >= before + 2
    assert Lock(name, using="other").acquire(timeout=PATIENCE)
    assert clock() >= before + 2


@pytest.mark.slow
def test_a_lease_longer_than_asked_for_is_relied_on_for_as_long_as_asked(
    settings, backend_settings, actor, name
):
    """Where elections take long, the cluster makes short leases longer."""
    slowly = {"election-timeout": "4000", "heartbeat-interval": "400"}
    with Etcd(slowly) as server:
        (entry,) = backend_settings("etcd").values()
        settings.DISTLOCK = dict.fromkeys(
            ("default", "other"), {**entry, "LOCATION": server.url, "LEASE": 2}
        )
        locks.close_all()

        def attempt(lease):
            own = f"{name}:{lease}"
            lock = Lock(own, lease=lease, renew=False)
            lock.acquire()
            assert lock.remaining <= lease
            assert int(server.time_to_live(lease_of(server, own))["grantedTTL"]) == 6
            eventually(lambda: not lock.held)
            assert not Lock(own, using="other").acquire(blocking=False)
            with Lock(own, using="other", lease=lease) as kept:
                eventually(lambda: kept.info().renewed_at > kept.info().since)

        steadily(attempt, 2, 3)
        locks.close_all()
