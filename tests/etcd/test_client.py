"""The client: leases and watches, for whoever builds on it; greenlets."""

import re
import threading

import pytest

from distlock import Lock, locks
from distlock.backends.etcd import watches
from distlock.backends.etcd.messages import get
from distlock.exceptions import BodyEnded
from tests.children import read_line, write_line
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually, passed
from tests.etcd.conftest import followed, revision
from tests.servers.process import free_port


@pytest.fixture
def client(backend):
    return backend.client


def test_a_watch_tells_of_a_change_after_its_revision(client, told, name):
    since = revision(client, name)
    client.watches.add(name, since, told)
    assert not told.wait(0.1)
    revision(client, name)
    assert told.wait(PATIENCE)


def test_a_watch_tells_of_a_change_that_came_before_it(client, told, name):
    since = revision(client, name)
    revision(client, name)
    client.watches.add(name, since, told)
    assert told.wait(PATIENCE)


def test_without_its_hint_a_watch_misses_a_change_that_came_before_it(
    client, told, name, hintless_watches
):
    """So the test before would show that a wake-up was lost."""
    since = revision(client, name)
    revision(client, name)
    client.watches.add(name, since, told)
    assert not told.wait(0.5)
    revision(client, name)
    assert told.wait(PATIENCE)


def test_a_watch_that_is_added_to_a_stream_tells_of_a_change_that_came_before_it(
    client, told, name
):
    since = revision(client, name)
    followed(client, f"{name}:other")
    for number in range(20):
        revision(client, f"{name}:{number}")
        told.clear()
        client.watches.add(f"{name}:{number}", since, told)
        assert told.wait(PATIENCE)


def test_a_watch_tells_nothing_if_all_that_came_before_it_was_seen(client, told, name):
    """A waiter that looks at each hint looks once for each change."""
    since = revision(client, name)
    for _ in range(5):
        client.watches.add(name, since, told)
        client.watches.add(f"{name}:other", since, told)
    assert not told.wait(0.3)


def test_a_member_that_lags_behind_what_was_seen_tells_no_earlier_changes(client, told, name):
    """A look at another member may show a later revision than the one the stream begins with."""
    since = revision(client, name) + 2
    client.watches.add(name, since, told)
    revision(client, name)
    revision(client, name)
    assert not told.wait(0.3)
    revision(client, name)
    assert told.wait(PATIENCE)


@pytest.mark.parametrize("is_woken", [True, False], ids=["with the hint", "without it"])
def test_what_changes_while_there_is_no_stream_is_hinted_at_when_there_is_one(
    configure, proxied, told, name, etcd, request, is_woken
):
    proxy = proxied("etcd")
    client = locks[configure()].client
    client.watches.add(name, followed(client, name), told)
    if not is_woken:
        request.getfixturevalue("hintless_watches")
    proxy.refuse()
    etcd.put(name, "changed")
    proxy.heal()
    assert told.wait(PATIENCE if is_woken else 1.5) is is_woken


def test_another_key_to_watch_costs_no_request(client, told, requests, name):
    followed(client, name)
    before = requests()
    for number in range(10):
        told.clear()
        client.watches.add(f"{name}:{number}", 0, told)
        assert told.wait(PATIENCE)
    assert requests() == before


def test_keys_that_were_watched_once_are_not_followed_for_ever(client, metrics, name):
    followed(client, *(f"{name}:{number}" for number in range(100)))
    watchers = re.compile(r"^etcd_debugging_mvcc_watcher_total (\d+)$", re.M)
    eventually(lambda: int(watchers.search(metrics())[1]) < 40)


def test_a_watch_tells_if_changes_may_have_been_forgotten(client, etcd, told, name):
    since = revision(client, name)
    revision(client, "another")
    etcd.compact()
    client.watches.add(name, since - 1, told)
    assert told.wait(PATIENCE)


def test_a_watch_tells_once(client, told, name):
    since = revision(client, name)
    client.watches.add(name, since, told)
    revision(client, name)
    assert told.wait(PATIENCE)
    revision(client, name)
    assert not threading.Event().wait(0.1)
    assert told.times == 1


def test_a_watch_that_was_cancelled_tells_nothing(client, told, name):
    since = revision(client, name)
    watch = client.watches.add(name, since, told)
    assert watch.cancel()
    assert not watch.cancel()
    revision(client, name)
    assert not told.wait(0.1)


def test_a_watch_that_follows_a_cancelled_one_waits_for_no_pause(client, name, monkeypatch):
    """The pauses are for members that cannot be asked."""
    monkeypatch.setattr(watches, "_FIRST_PAUSE", 2 * PATIENCE)
    monkeypatch.setattr(watches, "_LONGEST_PAUSE", 2 * PATIENCE)
    since = followed(client, name, f"{name}:other")
    for _ in range(20):
        told, follows = threading.Event(), threading.Event()
        client.watches.add(f"{name}:other", since, told.set)
        first = client.watches.add(name, since, follows.set)
        revision(client, f"{name}:other")
        assert told.wait(PATIENCE)  # so there is a stream
        assert first.cancel()
        client.watches.add(name, since, follows.set)
        since = revision(client, name)
        assert follows.wait(PATIENCE)


def test_a_watch_goes_on_after_the_network_broke(configure, proxied, told, name):
    proxy = proxied("etcd")
    client = locks[configure()].client
    since = revision(client, name)
    client.watches.add(name, since, told)
    proxy.refuse()
    proxy.heal()
    revision(client, name)
    assert told.wait(PATIENCE)


def test_one_stream_serves_one_watch_after_the_other(configure, proxied, name):
    """Also for what has changed before the watch, and for keys that have changed often since."""
    proxy, nobody = proxied("etcd"), free_port()
    client = locks[configure()].client
    quiet, last = threading.Event(), revision(client, name)

    def watch(since):
        told = threading.Event()
        client.watches.add(name, since, told.set)
        return told

    client.watches.add(f"{name}:quiet", last, quiet.set)
    first = watch(last)
    for time in range(5):
        since, last = last, revision(client, name)
        assert first.wait(PATIENCE)
        first = watch(last)
        if time == 1:  # a stream for the first watch alone may have told of one change
            proxy.lead_new_to(nobody)  # and another stream cannot be opened
    last = revision(client, name)
    assert first.wait(PATIENCE)
    assert watch(since).wait(PATIENCE)
    for _ in range(10):
        revision(client, name)
    passed(0.1)  # so that the stream has told of all
    assert watch(last).wait(PATIENCE)
    revision(client, f"{name}:quiet")
    assert quiet.wait(PATIENCE)


def test_many_changes_that_nobody_waits_for_disturb_no_other_watch(client, told, name):
    since = followed(client, name, f"{name}:quiet")
    client.watches.add(f"{name}:quiet", since, told)
    client.watches.add(name, since, threading.Event().set)
    for _ in range(50):
        revision(client, name)
    assert not told.wait(0.1)
    revision(client, f"{name}:quiet")
    assert told.wait(PATIENCE)


def test_an_error_of_one_callback_keeps_no_other_from_being_called(client, told, name, caplog):
    def fail():
        raise ZeroDivisionError

    since = revision(client, name)
    client.watches.add(name, since, fail)
    client.watches.add(name, since, told)
    revision(client, name)
    assert told.wait(PATIENCE)
    eventually(lambda: "ZeroDivisionError" in caplog.text)


def test_what_comes_to_a_thread_in_a_callback_is_its_own(client, told, name):
    """What a key has told already is called back by who adds the watch: an interrupt is for it."""

    def interrupt():
        raise BodyEnded("the lock around this was lost")

    client.watches.add(name, followed(client, name), told)
    with pytest.raises(BodyEnded):
        client.watches.add(name, 0, interrupt)


def test_a_lease_whose_answer_was_lost_is_one_lease(configure, proxied, new_leases):
    proxy = proxied("etcd")
    client = locks[configure()].client
    lost = proxy.lose_reply(to=b"lease/grant")
    lease = client.grant(20)
    assert lost.is_set()
    assert lease.ttl == 20
    assert new_leases() == {str(lease.id)}


def test_leases_are_kept_alive_and_ended(client, etcd):
    leases = [client.grant(20).id for _ in range(3)]
    client.revoke(leases[1])
    kept = client.keep_alive(leases)
    assert kept.ttls == {leases[0]: 20, leases[1]: 0, leases[2]: 20}
    assert kept.proven_by(client.txn([], [get("/")]))
    assert int(etcd.time_to_live(leases[1])["TTL"]) == -1
    assert client.revoke(leases[0]) is True
    assert client.revoke(leases[0]) is False


def test_all_of_very_many_leases_are_kept_alive_in_one_request(client):
    leases = [client.grant(20).id for _ in range(300)]
    assert client.keep_alive(leases).ttls == dict.fromkeys(leases, 20)
    for lease in leases:
        client.revoke(lease)


# Greenlets


def use_greenlets(using, name):
    """Many greenlets under one lock, while another one must not be blocked."""
    import gevent

    ticks, inside, most = [], [], []

    def tick():
        while True:
            ticks.append(1)
            gevent.sleep(0.005)

    def work():
        for _ in range(5):
            with Lock(name, using=using):
                inside.append(1)
                most.append(len(inside))
                gevent.sleep(0.001)
                inside.pop()

    def tell_of_ticks():
        assert gevent.get_hub().threadpool.apply(read_line) == "it waits"
        before = len(ticks)
        while len(ticks) <= before + 5:
            gevent.sleep(0.005)
        write_line("ticks")

    ticking = gevent.spawn(tick)
    gevent.joinall([gevent.spawn(work) for _ in range(10)], raise_error=True)
    write_line(len(most), max(most))
    assert gevent.get_hub().threadpool.apply(read_line) == "it is held"
    telling = gevent.spawn(tell_of_ticks)
    with Lock(name, using=using):
        write_line("has it")
    telling.get()
    ticking.kill()


@pytest.mark.slow
def test_greenlets_take_turns_and_the_hub_runs_on(using, child, name):
    greenlets = child(use_greenlets, using, name, gevent=True)
    assert greenlets.line() == "50 1"
    with Lock(name, using="other"):
        greenlets.tell("it is held")
        eventually(lambda: locks["other"].inspect(name).waiters)
        greenlets.tell("it waits")
        assert greenlets.line() == "ticks"
    assert greenlets.line() == "has it"
    greenlets.finish()
