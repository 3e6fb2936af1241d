"""What a backend promises to the layers above: leases are compared by their very acquisition."""

import asyncio
import itertools
import os
from dataclasses import replace

import pytest

from distlock.concurrency.clock import clock
from distlock.concurrency.steps import arun, run
from distlock.conf import BackendHandler
from distlock.types.lease import Claim, Owner, State
from tests.contract.actors import PATIENCE, answered
from tests.contract.watch import eventually

_serials = itertools.count(1)


def someone():
    return Owner(f"test:{os.getpid()}:{next(_serials)}", "host", os.getpid(), "thread")


@pytest.fixture
def ann():
    return someone()


@pytest.fixture
def amy(backend, ann):
    """One who is the same in another claim: where owners can have names, only those who do."""
    return replace(ann, key=f"@{ann.key}") if backend.capabilities.named_owners else ann


@pytest.fixture
def bob():
    return someone()


def claim(name, owner, duration=30.0, **more):
    return Claim(name, owner, duration, **more)


def test_a_free_lock_is_granted(backend, ann, name):
    request = claim(name, ann)
    before = clock()
    lease = backend.try_acquire(request)
    assert lease.claim == replace(request, duration=lease.duration)
    assert lease.duration == 30 if backend.capabilities.lease_lengths else lease.duration <= 30
    assert (
        lease.deadline <= clock() + 30
        if backend.capabilities.lease_lengths
        else lease.deadline > before
    )


def test_the_deadline_is_counted_from_before_the_request_was_sent(backend, ann, name):
    before = clock()
    lease = backend.try_acquire(claim(name, ann, 30.0))
    after = clock()
    assert not backend.capabilities.lease_lengths or before + 29.9 <= lease.deadline <= after + 30


def test_a_held_lock_is_not_granted(backend, ann, bob, name):
    backend.try_acquire(claim(name, ann))
    assert backend.try_acquire(claim(name, bob)) is None


def test_waiting_ends_at_the_deadline(backend, ann, bob, name):
    backend.try_acquire(claim(name, ann))

    def wait():
        deadline = clock() + 0.2
        lease = run(backend.enqueue(claim(name, bob), deadline))
        assert clock() >= deadline
        return lease

    assert answered(wait) is None


def test_the_same_owner_goes_on_under_a_new_token(backend, amy, name):
    first = backend.try_acquire(claim(name, amy))
    second = backend.try_acquire(claim(name, amy))
    assert second.token > first.token
    assert backend.verify(second)


def test_the_same_claim_sent_twice_is_one_hold(backend, ann, bob, name):
    """As after an answer that was lost: the second grant replaces the first."""
    request = claim(name, ann)
    backend.try_acquire(request)
    lease = backend.try_acquire(request)
    assert backend.verify(lease)
    assert backend.release(lease)
    assert backend.try_acquire(claim(name, bob))


def test_another_claim_of_an_owner_without_a_name_is_not_granted(backend, ann, name):
    """It may be one that was given up, carried out after the one that holds the lock."""
    lease = backend.try_acquire(claim(name, ann))
    if backend.capabilities.named_owners:
        assert backend.try_acquire(claim(name, ann)) is None
    assert backend.verify(lease)


def test_releasing_tells_whether_it_was_still_ones_own(backend, ann, name):
    lease = backend.try_acquire(claim(name, ann))
    assert backend.release(lease) is True
    assert backend.release(lease) is False


def test_a_claim_that_another_process_repeats_can_be_freed_by_each(backend, using, amy, name):
    """As the place of a queued Celery task, which its worker takes anew."""
    if not (backend.capabilities.named_owners and backend.capabilities.outlives_process):
        return
    another = BackendHandler()[using]
    request = claim(name, amy)
    lease = backend.try_acquire(request)
    assert another.try_acquire(request)
    assert backend.release(lease)
    assert backend.inspect(name).state is State.FREE
    another.close()


def test_an_older_lease_of_the_same_owner_cannot_release_the_newer(backend, amy, name):
    old = backend.try_acquire(claim(name, amy))
    new = backend.try_acquire(claim(name, amy))
    assert backend.release(old) is False
    assert backend.verify(new)


def test_an_older_lease_of_the_same_owner_cannot_renew_the_newer(backend, amy, name):
    old = backend.try_acquire(claim(name, amy))
    new = backend.try_acquire(claim(name, amy))
    assert old.nonce not in held_of(backend.renew([old]))
    assert backend.verify(new)


def test_an_older_lease_of_the_same_owner_does_not_verify(backend, amy, name):
    old = backend.try_acquire(claim(name, amy))
    backend.try_acquire(claim(name, amy))
    assert backend.verify(old) is False


def test_an_older_claim_of_the_same_owner_cannot_withdraw_the_newer(backend, amy, name):
    old = claim(name, amy)
    backend.try_acquire(old)
    new = backend.try_acquire(claim(name, amy))
    backend.cancel(old)
    assert backend.verify(new)


def test_a_withdrawn_claim_holds_nothing(backend, ann, bob, name):
    request = claim(name, ann)
    backend.try_acquire(request)
    backend.cancel(request)
    assert backend.inspect(name).state is State.FREE
    assert backend.try_acquire(claim(name, bob))


def test_withdrawing_twice_or_in_vain_does_no_harm(backend, ann, bob, name):
    request = claim(name, ann)
    backend.cancel(request)
    backend.try_acquire(request)
    backend.cancel(request)
    theirs = backend.try_acquire(claim(name, bob))
    backend.cancel(request)
    assert backend.verify(theirs)


def held_of(answer):
    """Return the nonces of the leases that were still the current holds."""
    return {nonce for nonce in answer if not isinstance(answer, dict) or answer[nonce]}


def test_renewing_tells_which_leases_were_still_held(backend, ann, bob, name):
    kept = backend.try_acquire(claim(f"{name}:kept", ann))
    freed = backend.try_acquire(claim(f"{name}:freed", ann))
    backend.release(freed)
    taken = backend.try_acquire(claim(f"{name}:taken", ann))
    backend.force_release(taken.name, taken.token)
    backend.try_acquire(claim(f"{name}:taken", bob))
    assert held_of(backend.renew([kept, freed, taken])) == {kept.nonce}


def test_renewing_nothing_asks_nothing(backend):
    assert held_of(backend.renew([])) == set()


def test_many_leases_are_renewed_at_once(backend, ann, name):
    leases = [backend.try_acquire(claim(f"{name}:{n}", ann)) for n in range(150)]
    assert held_of(backend.renew(leases)) == {lease.nonce for lease in leases}


def test_renewing_lets_the_lease_run_for_its_full_length_again(backend, ann, name):
    lease = backend.try_acquire(claim(name, ann, 30.0))
    before = backend.inspect(name)
    eventually(lambda: backend.inspect(name).held_for > 0.01)
    backend.renew([lease])
    after = backend.inspect(name)
    assert after.since == before.since
    assert not backend.capabilities.lease_lengths or after.until > before.until


@pytest.mark.essential
def test_an_ended_lease_is_not_renewed_back_to_life(backend, short, ann, name):
    if not backend.capabilities.lease_lengths:
        assert backend.inspect(name).until is None
        return
    lease = backend.try_acquire(claim(name, ann, short(0.1)))
    eventually(lambda: backend.inspect(name).state is not State.HELD)
    assert held_of(backend.renew([lease])) == set()
    assert backend.verify(lease) is False


def test_an_ended_lease_does_not_verify(backend, short, ann, name):
    if not backend.capabilities.lease_lengths:
        assert backend.inspect(name).remaining is None
        return
    lease = backend.try_acquire(claim(name, ann, short(0.1)))
    eventually(lambda: backend.inspect(name).state is not State.HELD)
    assert backend.verify(lease) is False


@pytest.mark.essential
def test_the_same_owner_takes_over_its_own_ended_lease(backend, short, amy, name):
    old = backend.try_acquire(claim(name, amy, short(0.1)))
    end = clock() + short(0.1)
    eventually(
        lambda: (
            backend.inspect(name).state is not State.HELD
            if backend.capabilities.lease_lengths
            else clock() > end
        )
    )
    new = backend.try_acquire(claim(name, amy))
    assert new.token > old.token
    assert backend.release(old) is False
    assert backend.verify(new)


def test_a_closed_backend_can_be_used_again(backend, ann, bob, name):
    lease = backend.try_acquire(claim(name, ann))
    backend.close()
    if backend.capabilities.lease_lengths:
        assert backend.verify(lease)
        assert backend.release(lease)
    else:  # the hold was the connection's, and ended with it
        assert not backend.verify(lease)
        assert backend.try_acquire(claim(name, bob))


def test_a_broken_lease_is_handed_back(backend, ann, name):
    lease = backend.try_acquire(claim(name, ann, description="why"))
    broken = backend.force_release(name, lease.token)
    assert (broken.name, broken.token, broken.nonce) == (name, lease.token, lease.nonce)
    assert broken.owner == ann


def test_the_async_twins_do_the_same(backend, ann, bob, name):
    async def take():
        lease = await backend.attempt(claim(name, ann), None).arun()
        return lease, await backend.attempt(claim(name, bob), None).arun()

    async def wait(seconds):
        return await arun(backend.enqueue(claim(name, bob), clock() + seconds))

    lease, other = asyncio.run(take())
    assert backend.verify(lease)
    assert other is None
    assert answered(lambda: asyncio.run(wait(0.05))) is None
    backend.release(lease)
    assert backend.verify(asyncio.run(wait(PATIENCE)))
