"""Three members, of which some are killed, stopped, or lead no more; and one that is restarted."""

import threading
import time

import pytest

from distlock import Lock, LockLost, LockUnavailable, locks
from distlock.backends.etcd.messages import get, put
from distlock.concurrency.clock import clock
from distlock.types.lease import Claim
from distlock.types.owners import current_owner
from tests.contract.actors import PATIENCE
from tests.contract.watch import Once, eventually, passed, waits
from tests.etcd.conftest import BACKEND

pytestmark = pytest.mark.slow

#: seconds; elections take one to two, and a machine may stand still for as long
LEASE = 12


@pytest.fixture
def ensemble(etcd_ensemble):
    yield etcd_ensemble
    etcd_ensemble.heal()


@pytest.fixture
def using(ensemble, settings):
    """The alias of a client of all members; "other" and "third" are further ones."""
    entry = {
        "BACKEND": BACKEND,
        "LOCATION": ensemble.hosts,
        "LEASE": LEASE,
        "RENEW": 0.5,
        "OPTIONS": {"timeout": 5},
    }
    settings.DISTLOCK = {
        **dict.fromkeys(("default", "other", "third"), entry),
        **{
            f"member-{number}": {**entry, "LOCATION": member.url}
            for number, member in enumerate(ensemble.members)
        },
    }
    locks.close_all()
    yield "default"
    locks.close_all()


@pytest.fixture
def held(using, name):
    """A lock that is held."""
    lock = Lock(name, using=using)
    lock.acquire()
    yield lock
    if lock.held:
        lock.release()


def renewed(lock):
    """Wait until the lease was renewed after now."""
    before = clock()
    eventually(lambda: lock.remaining > LEASE * 0.9 and clock() > before + 0.6, 2 * PATIENCE)


def followers(ensemble):
    leader = ensemble.leader
    return [member for member in ensemble.members if member is not leader]


def test_a_change_of_the_leader_changes_nothing_for_locks(ensemble, held, actor, name):
    wait = actor("thread", "other").lock(name).start("acquire")
    for _ in range(2):
        ensemble.leader.lead(followers(ensemble)[0])
        renewed(held)
    assert waits(wait)
    with Lock(f"{name}:2", using="third") as lock:
        lock.verify()
    held.verify()
    held.release()
    assert wait.result(PATIENCE)


def test_a_leader_that_is_killed_and_restarted_changes_nothing_for_locks(
    ensemble, held, actor, name
):
    wait = actor("thread", "other").lock(name).start("acquire")
    leader = ensemble.leader
    leader.kill()
    renewed(held)
    assert waits(wait)
    leader.start()
    renewed(held)
    with Lock(f"{name}:2", using="third") as lock:
        lock.verify()
    held.release()
    assert wait.result(PATIENCE)


def test_a_member_that_accepts_and_never_answers_changes_nothing_for_locks(ensemble, held, name):
    for member in ensemble.members:
        member.pause()
        renewed(held)
        with Lock(f"{name}:2", using="other") as lock:
            lock.verify()
        member.resume()
        ensemble.heal()


def test_without_a_quorum_no_lock_can_be_had_and_with_one_again(ensemble, using, name):
    with Lock(name, using=using):
        pass
    stopped = followers(ensemble)
    for member in stopped:
        member.kill()
    before = clock()
    with pytest.raises(LockUnavailable, match=r"DISTLOCK\['default'\]: etcd at"):
        Lock(name, using=using, timeout=1).acquire()
    assert clock() < before + 10
    for member in stopped:
        member.launch()
    eventually(lambda: _gets(name, using), 2 * PATIENCE)


def _gets(name, using):
    try:
        return Lock(name, using=using).acquire(timeout=1)
    except LockUnavailable:
        return False


def test_a_hold_without_a_quorum_is_lost_in_time(ensemble, using, name):
    """Before others can get it: nobody can get it meanwhile."""
    on_lost = Once()
    lock = Lock(name, using=using, on_lost=on_lost)
    lock.acquire()
    stopped = followers(ensemble)
    for member in stopped:
        member.pause()
    on_lost.wait()
    with pytest.raises(LockLost):
        lock.check()
    for member in stopped:
        member.resume()
    ensemble.heal()
    assert Lock(name, using="other").acquire(timeout=2 * PATIENCE)


def test_who_waits_goes_on_after_an_election(ensemble, using, held, actor, name):
    wait = actor("thread", "other").lock(name).start("acquire")
    eventually(lambda: locks[using].inspect(name).waiters)
    ensemble.leader.kill()
    renewed(held)
    ensemble.heal()
    held.release()
    assert wait.result(2 * PATIENCE)


def test_a_keepalive_proves_nothing_if_there_was_an_election_after_it(ensemble, using, name):
    """It may have been answered by the leader of before, which the new one does not know of."""
    client = locks[using].client
    lease = client.grant(LEASE)
    kept = client.keep_alive([lease.id])
    assert kept.proven_by(client.txn([], [get(name)]))
    ensemble.leader.lead(followers(ensemble)[0])
    eventually(lambda: ensemble.leader)
    assert not kept.proven_by(client.txn([], [get(name)]))
    assert not kept.proven_by(client.txn([], [put(name, "")]))
    again = client.keep_alive([lease.id])
    assert again.proven_by(client.txn([], [get(name)]))


def test_a_renewal_during_which_the_leader_changed_is_repeated(ensemble, using, name, monkeypatch):
    backend = locks[using]
    lease = backend.try_acquire(Claim(name, current_owner(), float(LEASE)))
    answers = []
    keep_alive = type(backend.client).keep_alive

    def then_elect(client, *args):
        answers.append(keep_alive(client, *args))
        if len(answers) == 1:
            ensemble.leader.lead(followers(ensemble)[0])
            eventually(lambda: ensemble.leader)
        return answers[-1]

    monkeypatch.setattr(type(backend.client), "keep_alive", then_elect)
    assert backend.renew([lease]) == {lease.nonce: True}
    # An earlier test may have left a lease that is renewed, too.
    assert len([one for one in answers if one.ttls.keys() == answers[0].ttls.keys()]) == 2


def test_no_two_hold_it_while_leaders_are_stopped_and_go_on(ensemble, using, name):
    """Each holder writes down when it began and ended; tokens and times must not overlap."""
    over, spans, problems = threading.Event(), [], []

    def work(alias):
        while not over.is_set():
            lock = Lock(name, using=alias, timeout=5)
            try:
                if not lock.acquire():
                    continue
                began, token = clock(), lock.token
                time.sleep(0.02)
                while lock.held and clock() < began + 0.05:
                    time.sleep(0.005)
                ended = clock()  # before the look, after which this thread may stand still
                was_held = lock.held
                lock.release()
                if was_held:
                    spans.append((token, began, ended))
            except (LockUnavailable, LockLost):
                continue
            except Exception as error:
                problems.append(error)
                return

    threads = [
        threading.Thread(target=work, args=(each,)) for each in ("default", "other", "third")
    ]
    for thread in threads:
        thread.start()
    for _ in range(2):
        leader = ensemble.leader
        leader.pause()
        passed(2.5)
        leader.resume()
        before = len(spans)
        eventually(lambda before=before: problems or len(spans) > before + 10, 2 * PATIENCE)
    over.set()
    for thread in threads:
        thread.join(2 * PATIENCE)
    assert not problems
    spans.sort()
    for (_, _, ended), (_, began, _) in zip(spans, spans[1:], strict=False):
        assert ended <= began


@pytest.fixture
def restarted(etcd):
    yield etcd
    etcd.heal()


def test_a_server_that_is_restarted_with_its_data_keeps_locks_and_waits(
    configure, actor, restarted, name
):
    using = configure(entry={"LEASE": 20, "RENEW": 0.5}, timeout=5)
    lock = Lock(name, using=using)
    lock.acquire()
    wait = actor("thread", "other").lock(name).start("acquire")
    eventually(lambda: locks[using].inspect(name).waiters)
    restarted.kill()
    restarted.start()
    eventually(lambda: lock.remaining > 18, 2 * PATIENCE)
    lock.verify()
    assert waits(wait)
    lock.release()
    assert wait.result(2 * PATIENCE)


def test_who_is_killed_while_it_waits_holds_up_nobody_for_long(using, child, actor, name):
    held = Lock(name, using=using)
    held.acquire()
    waiter = child(wait_for, "other", name)
    eventually(lambda: locks[using].inspect(name).waiters)
    behind = actor("thread", "third").lock(name).start("acquire")
    eventually(lambda: len(locks[using].inspect(name).waiters) == 2)
    waiter.kill()
    held.release()
    assert behind.result(PATIENCE)


def wait_for(using, name):
    Lock(name, using=using, lease=3600).acquire()
