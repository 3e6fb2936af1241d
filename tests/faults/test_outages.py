"""A database that is down, goes away and comes back, as those who use locks meet it."""

import os
import signal
from threading import Thread

import pytest

from distlock import Lock, LockLost, LockTimeout, LockUnavailable
from tests.children import write_line
from tests.contract.actors import PATIENCE, answered
from tests.contract.watch import Once, cleaned_up, eventually, passed, steadily, waits
from tests.databases import SERVERS
from tests.faults.conftest import EAGER, renewed

pytestmark = pytest.mark.parametrize("kind", SERVERS)

WHO = ["thread", "task"]
#: for tests that wait until an answer is overdue
BRIEFLY = pytest.mark.parametrize("answer_limit", [4])


@pytest.fixture
def database_server(using, server, kind):
    return server(kind)


@pytest.fixture
def proxy(using, proxied, kind):
    return proxied(kind)


# Down at the start


def start_without_database(using, name):
    """A process that starts while the database is down, and works as soon as it is there."""
    lock = Lock(name, using=using)
    try:
        lock.acquire(timeout=1)
    except LockUnavailable as error:
        write_line(type(error).__name__, type(error.__cause__).__name__)
    from tests.children import read_line

    read_line()
    with lock:
        write_line("held", lock.token)


@pytest.mark.every_day_on("mariadb")
def test_a_process_that_starts_before_its_database_works_when_that_is_there(
    child, database_server, using, name
):
    database_server.stop()
    process = child(start_without_database, using, name)
    word, cause = process.line().split()
    assert word == "LockUnavailable"
    assert cause != "NoneType"
    database_server.start()
    process.tell("go on")
    assert process.line().startswith("held ")
    process.finish()


@pytest.mark.parametrize("who", WHO)
def test_a_database_that_is_down_is_not_a_lock_that_is_held(
    actor, database_server, who, using, name
):
    """Neither False nor LockTimeout, which would say that someone else has it."""
    database_server.stop()
    lock = actor(who).lock(name)
    for member, arguments in [
        ("acquire", {"blocking": False}),
        ("acquire", {"timeout": 1}),
        ("locked", {}),
        ("info", {}),
        ("force_release", {"token": 1}),
    ]:
        with pytest.raises(LockUnavailable) as caught:
            lock.start(member, **arguments).result(PATIENCE)
        assert not isinstance(caught.value, LockTimeout)
    assert lock.held is False


def test_no_body_runs_while_the_database_is_down(database_server, using, name):
    database_server.stop()
    ran = []

    @Lock(name, using=using)
    def work():
        ran.append(1)

    with pytest.raises(LockUnavailable):
        work()
    with pytest.raises(LockUnavailable), Lock(name, using=using):
        ran.append(1)
    with pytest.raises(LockUnavailable), Lock(name, using=using).atomic():
        ran.append(1)
    assert not ran


def test_a_password_is_in_no_error(database_server, using, name, settings, kind):
    from tests.databases import ALIASES, publish

    secret = "s3cret-pa55"
    entry = dict(settings.DATABASES[ALIASES[kind]])
    publish(ALIASES[kind], {"PASSWORD": secret, "USER": "nobody"})
    try:
        with pytest.raises(LockUnavailable) as caught:
            Lock(name, using=using).acquire(timeout=1)
    finally:
        publish(ALIASES[kind], {key: entry.get(key, "") for key in ("PASSWORD", "USER")})
    assert secret not in f"{caught.value} {caught.value!r}"


# Goes away while waiting


@BRIEFLY
@pytest.mark.slow
@pytest.mark.parametrize("who", WHO)
def test_a_crash_while_waiting_is_told_or_outlived(actor, database_server, who, name):
    """Never silence: the waiter gets an error, or the lock once the database is back."""
    holder, waiter = actor("process"), actor(who)
    holder.take(name, lease=60)
    lock = waiter.lock(name)
    waiting = lock.start("acquire", timeout=PATIENCE)
    assert waits(waiting, 0.2)
    database_server.kill()
    with pytest.raises(LockUnavailable):
        waiting.result(PATIENCE)
    database_server.start()
    assert answered(lambda: lock.acquire(blocking=False)) is False
    again = lock.start("acquire")
    assert waits(again)
    holder.start(1, "release").result(PATIENCE)
    assert again.result(PATIENCE) is True


def test_a_connection_cut_while_waiting_leaves_nothing_behind(actor, proxy, name):
    holder, waiter, third = actor("thread"), actor("process"), actor("thread")
    held = holder.take(name, lease=60)
    lock = waiter.lock(name)
    waiting = lock.start("acquire", timeout=PATIENCE)
    assert waits(waiting, 0.2)
    proxy.cut()
    held.release()
    try:
        got = waiting.result(PATIENCE)
    except LockUnavailable:
        got = False
    if got:
        lock.verify()
        lock.release()
    assert third.lock(name).acquire(timeout=PATIENCE)


# Goes away while holding


@EAGER
@pytest.mark.slow
@pytest.mark.parametrize("who", WHO)
def test_a_blip_shorter_than_the_lease_is_outlived(actor, proxy, who, name):
    """Renewals that fail are tried again until the lease would end."""
    lock = actor(who).take(name, lease=12)
    token = lock.token
    until = lock.info().until
    proxy.refuse()
    passed(2)  # the renewals that were due fail
    assert lock.held
    proxy.heal()
    eventually(lambda: lock.info().until > until)
    lock.verify()
    assert lock.token == token
    lock.release()


@pytest.mark.parametrize("who", WHO)
def test_an_outage_longer_than_the_lease_is_a_loss_told_in_time(
    actor, proxy, who, sent_events, name
):
    """By its own clock, before the server could give the lock to anyone else."""
    on_lost = Once()
    lock = actor(who).take(name, lease=1, on_lost=on_lost)
    proxy.refuse()
    passed(1)  # no request that was answered can have been sent later
    assert lock.held is False
    token = on_lost.wait()[0].token
    with pytest.raises(LockLost):
        lock.check()
    with pytest.raises(LockLost):
        lock.release()
    sent_events.wait_for("lost", name)
    proxy.heal()
    other = actor("thread").lock(name)
    assert other.acquire(timeout=PATIENCE)
    assert other.token > token


@pytest.mark.slow
def test_a_server_that_hangs_while_one_holds_is_a_loss_told_in_time(actor, database_server, name):
    on_lost = Once()
    lock = actor("thread").take(name, lease=1.2, on_lost=on_lost)
    database_server.pause()
    on_lost.wait()
    assert not lock.held
    database_server.resume()
    assert actor("thread").lock(name).acquire(timeout=PATIENCE)


def test_a_restart_while_holding_loses_nothing(actor, database_server, name):
    lock = actor("thread").take(name, lease=60)
    token = lock.token
    database_server.kill()
    database_server.start()
    assert not actor("thread").tries(name)
    lock.verify()
    assert lock.token == token
    lock.release()
    assert actor("thread").tries(name)


@pytest.mark.slow
def test_a_connection_that_falls_silent_costs_no_lock_its_lease(actor, proxy, name):
    """Its server is well: the renewal that had no answer is sent again on another connection."""

    def attempt(lease):
        lost = Once()
        lock = actor("thread").take(f"{name}:{lease}", lease=lease, on_lost=lost)
        proxy.forget(b"UPDATE database_lock SET expires_at")
        passed(lease + 0.5)
        lock.verify()
        assert not lost.calls
        lock.release()

    steadily(attempt, 4, 12)


# Goes away while freeing


@pytest.mark.parametrize("who", WHO)
def test_a_lock_that_could_not_be_freed_is_freed_when_the_database_is_back(
    actor, database_server, who, name
):
    """Long before its lease ends."""
    lock = actor(who).take(name, lease=3600)
    database_server.stop()
    with pytest.raises(LockUnavailable):
        lock.release()
    assert lock.held is False
    database_server.start()
    assert actor("process").lock(name).acquire(timeout=PATIENCE)


@pytest.mark.parametrize("who", WHO)
def test_leaving_while_the_database_is_down_does_not_hide_the_bodys_exception(
    actor, database_server, who, using, name
):
    def work():
        with Lock(name, using=using):
            database_server.stop()
            raise ZeroDivisionError

    async def awork():
        async with Lock(name, using=using):
            database_server.stop()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        actor(who).call(work if who == "thread" else awork).result(PATIENCE)


@pytest.mark.parametrize("who", WHO)
def test_leaving_while_the_database_is_down_is_told(actor, database_server, who, using, name):
    def work():
        with Lock(name, using=using):
            database_server.stop()

    async def awork():
        async with Lock(name, using=using):
            database_server.stop()

    with pytest.raises(LockUnavailable):
        actor(who).call(work if who == "thread" else awork).result(PATIENCE)


# A reply that is lost after the commit


@pytest.mark.parametrize("who", WHO)
def test_a_lost_answer_to_the_take_is_one_hold(actor, proxy, who, name, sent_events):
    """Waiting goes on, and finds the lock to be its own."""
    lock = actor(who).lock(name)
    lost = proxy.lose_reply(to=name.encode())
    assert lock.acquire(timeout=PATIENCE) is True
    assert lost.is_set()
    lock.verify()
    assert not actor("process").tries(name)
    assert sent_events.words(name) == ["acquired"]
    lock.release()
    assert actor("process").tries(name)


@pytest.mark.parametrize("who", WHO)
def test_a_lost_answer_to_the_release_is_no_loss(actor, proxy, who, name, sent_events):
    lock = actor(who).take(name)
    lost = proxy.lose_reply(to=name.encode())
    lock.release()
    assert lost.is_set()
    assert sent_events.words(name) == ["acquired", "released"]
    assert actor("process").tries(name)


@EAGER
@pytest.mark.every_day_on("postgresql")
def test_a_lost_answer_to_a_renewal_is_no_loss(actor, proxy, name, sent_events):
    lock = actor("thread").take(name, lease=12)
    lost = proxy.lose_reply(to=b"database_lock")
    eventually(lost.is_set)
    renewed(lock)
    lock.verify()
    assert sent_events.words(name) == ["acquired"]


@BRIEFLY
@pytest.mark.slow
@pytest.mark.parametrize("who", WHO)
def test_a_take_whose_answers_never_come_is_taken_back(actor, proxy, who, name):
    """It may have been granted: what nobody knows to hold, nobody must wait for."""
    lock = actor(who).lock(name, lease=3600)
    proxy.drop_replies()
    with pytest.raises(LockUnavailable):
        lock.acquire(blocking=False)
    assert lock.held is False
    proxy.heal()
    assert actor("process").lock(name).acquire(timeout=PATIENCE)


# A request that arrives late


@BRIEFLY
@pytest.mark.slow
def test_a_take_that_arrives_after_it_was_given_up_is_taken_back(actor, proxy, name):
    """It was withdrawn before the server got it, which then grants the lock to nobody."""
    actor("thread").tries(name)
    late = proxy.delay(name.encode())
    with pytest.raises(LockUnavailable):
        actor("thread").lock(name, lease=900).acquire(blocking=False)
    assert late.kept_back.is_set()
    eventually(cleaned_up)
    late.end()
    passed(1)  # it arrives
    assert actor("process").lock(name).acquire(timeout=PATIENCE)


def test_a_take_that_an_interrupt_has_left_alone_is_taken_back_within_a_second(proxy, using, name):
    """The server carries it out just after it has answered that there is nothing to take back."""

    def interrupt():
        assert late.kept_back.wait(PATIENCE)
        os.kill(os.getpid(), signal.SIGINT)

    with Lock(name, using=using):
        pass
    late = proxy.delay(name.encode())
    Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        Lock(name, using=using, lease=900).acquire(blocking=False)
    eventually(cleaned_up)
    late.end()
    passed(0.1)  # it arrives
    assert Lock(name, using=using).acquire(timeout=5)  # on a loaded machine; the lease is long
    Lock(name, using=using).release()
