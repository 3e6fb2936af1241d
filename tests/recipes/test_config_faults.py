"""Config and Topic when processes are stopped or killed, and servers cannot be asked."""

import itertools
import random
import signal
import threading
from contextlib import suppress

import pytest

from distlock import LockUnavailable, StaleToken, locks
from distlock.backends.local_store import LocalStore
from distlock.recipes import Config, Topic
from tests.children import write_line
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually, passed
from tests.core.interrupting import interrupted
from tests.recipes.every_kind import ONE_LEASE, pytest_generate_tests  # noqa: F401 - pytest calls it
from tests.recipes.test_seats_faults import answer, stop

#: what is in the request that writes a record, besides its text
WRITES = {"etcd": b"request_put"}
#: more messages than are published while one who listens stands still
KEEP = 1_000_000


def follow_value(name):
    """As a child: say each version that is seen."""
    for value in Config(name).changes():
        write_line(value.version)


def follow_messages(name):
    """As a child: say each message."""
    for message in Topic(name).subscribe(0):
        write_line(message.message)


def count_for_ever(name):
    """As a child: set the value to what its version will be, if nobody else is faster."""
    config, number = Config(name), 0
    for number in itertools.count():
        version = config.get().version
        with suppress(StaleToken):
            config.set(version + 1, if_version=version)
        if number % 5 == 0:
            write_line(number)


def publish_for_ever(name, who):
    """As a child: publish messages, and say each that was published."""
    topic = Topic(name, keep=KEEP)
    for number in itertools.count():
        topic.publish([who, number])
        write_line(number)


def listen(topic, heard):
    """Keep all messages up to the last one."""
    for message in topic.subscribe(0):
        heard.append(message)
        if message.message == "last":
            return


@pytest.mark.shared
@pytest.mark.faults
class TestProcesses:
    def test_one_that_was_stopped_ends_at_the_latest_value(self, child, kind, using, name):
        config, topic = Config(name, using=using), Topic(name, using=using)
        config.set(1)
        topic.publish(1)
        value, messages = child(follow_value, name), child(follow_messages, name)
        assert (value.line(), messages.line()) == ("1", "1")
        stop(value, kind)
        stop(messages, kind)
        for number in range(2, 6):
            config.set(number)
            topic.publish(number)
        for each in (value, messages):
            each.signal(signal.SIGCONT)
        assert [messages.line() for _ in range(4)] == ["2", "3", "4", "5"]
        seen = [value.line()]
        while seen[-1] != "5":
            seen.append(value.line())
        assert seen == sorted(set(seen))

    @pytest.mark.slow
    def test_the_killed_leave_versions_and_numbers_in_order(self, child, kind, using, name):
        dice, config = random.Random(name), Config(name, using=using)
        topic = Topic(name, keep=KEEP)
        counting = [child(count_for_ever, name) for _ in range(3)]
        publishing = [child(publish_for_ever, name, who) for who in range(2)]
        heard = []
        thread = threading.Thread(target=listen, args=[topic, heard], daemon=True)
        thread.start()
        for number in range(6):
            for each in counting + publishing:
                each.line()
            victim = dice.randrange(3)
            counting[victim].kill()
            counting[victim] = child(count_for_ever, name)
            victim = dice.randrange(2)
            publishing[victim].kill()
            publishing[victim] = child(publish_for_ever, name, 10 + number)
        for each in counting + publishing:
            each.kill()
        found = config.get()
        assert found.value == found.version
        history = config.history()
        assert [one.version for one in history] == [
            found.version - back for back in range(len(history))
        ]
        assert all(one.value == one.version for one in history)
        last = topic.publish("last")
        thread.join(PATIENCE)
        assert [one.number for one in heard] == list(range(1, last + 1))
        for who in {one.message[0] for one in heard[:-1]}:
            own = [one.message[1] for one in heard[:-1] if one.message[0] == who]
            assert own == list(range(len(own)))


@pytest.mark.shared
@pytest.mark.faults
class TestNetwork:
    def test_the_last_known_value_is_marked_while_the_backend_is_away(self, proxy, loop, name):
        if proxy is None:
            return
        config = Config(name)
        answer(config.get)
        config.set({"rate": 20}, who="anna")
        proxy.refuse()
        with pytest.raises(LockUnavailable):
            Config(f"{name}:other").get()
        with pytest.raises(LockUnavailable):
            config.get(stale=False)
        found = Config(name).get()
        assert (found.value, found.version, found.who) == ({"rate": 20}, 1, "anna")
        assert found.stale
        found.value["rate"] = "mine"
        assert Config(name).get().value == {"rate": 20}
        with pytest.raises(LockUnavailable):
            config.set({"rate": 30})
        proxy.heal()
        assert not answer(lambda: config.get(stale=False)).stale

    @pytest.mark.parametrize("how", ["refuse", pytest.param("silence", marks=pytest.mark.slow)])
    def test_those_who_follow_end_at_the_latest_after_an_outage(
        self, proxy, how, kind, short, settings, name
    ):
        if proxy is None:
            return
        if kind not in ONE_LEASE:  # so all look often
            settings.DISTLOCK = {"default": {**settings.DISTLOCK["default"], "LEASE": short}}
        config, topic, seen, heard = Config(name), Topic(name), [], []
        answer(config.get)
        config.set(1)
        messages = topic.subscribe(timeout=2 * PATIENCE)
        thread = threading.Thread(target=lambda: heard.extend(next(messages) for _ in range(2)))
        thread.start()
        with config.watch(lambda value: seen.append(value.version)):
            eventually(lambda: seen == [1])
            getattr(proxy, how)()
            with pytest.raises(LockUnavailable):
                config.get(stale=False)
            passed(short)
            proxy.heal()
            last = answer(lambda: config.set(2))
            numbers = [answer(lambda: topic.publish("one")), answer(lambda: topic.publish("two"))]
            eventually(lambda: seen[-1] == last)
            thread.join(PATIENCE)
        assert seen == sorted(set(seen))
        assert [one.number for one in heard] == list(range(1, 3))
        assert numbers[-1] >= 2

    def test_after_a_lost_reply_the_history_tells(self, kind, proxy, name):
        if proxy is None:
            return
        config, topic = Config(name), Topic(name)
        answer(config.get)
        config.set("first")
        topic.publish("first")
        mark = WRITES.get(kind, b"who lost it")
        for make in (
            lambda: config.set("lost", who="who lost it"),
            lambda: topic.publish("lost", who="who lost it"),
        ):
            lost = proxy.lose_reply(mark)
            try:
                make()
            except LockUnavailable as error:
                assert error.maybe_applied
            else:
                assert kind == "zookeeper", "its nodes tell"
            assert lost.wait(PATIENCE)
            proxy.heal()
        assert answer(lambda: config.get(stale=False)).who == "who lost it"
        assert config.set("next") == 3
        assert [one.value for one in config.history()] == ["next", "lost", "first"]
        assert topic.publish("next") == 3
        found = [one.message for one in topic.subscribe(0, timeout=0)]
        assert found == ["first", "lost", "next"]

    def test_a_request_that_comes_late_overwrites_nothing(self, kind, proxy, name):
        if proxy is None or kind in {"etcd", "zookeeper"}:
            return  # etcd gets values in base64; ZooKeeper's requests cannot overtake each other
        config = Config(name)
        answer(config.get)
        config.set(1)
        late = proxy.delay(b"reason of the late one")
        with pytest.raises(LockUnavailable):
            config.set("late", reason="reason of the late one")
        assert late.kept_back.wait(PATIENCE)
        assert answer(lambda: config.set(2)) == 2
        late.end()
        assert config.set(3) == 3
        assert [one.value for one in config.history()] == [3, 2, 1]


@pytest.mark.shared
@pytest.mark.slow
def test_those_who_follow_outlast_a_restart_of_the_server(kind, server, using, name):
    if kind == "sqlite":
        return
    config, topic, seen, heard = Config(name, using=using), Topic(name, using=using), [], []
    config.set(1)
    messages = topic.subscribe(timeout=4 * PATIENCE)
    thread = threading.Thread(target=lambda: heard.append(next(messages).message))
    thread.start()
    with config.watch(lambda value: seen.append(value.version)):
        eventually(lambda: seen == [1])
        server(kind).kill()
        server(kind).start()
        version = answer(lambda: config.set(2))
        answer(lambda: topic.publish("after"))
        eventually(lambda: seen[-1] == version, 2 * PATIENCE)
        thread.join(2 * PATIENCE)
    assert seen == sorted(set(seen))
    assert heard == ["after"]


class Behind:
    """Lets the store of one process show what it was, as a server does that is behind."""

    def __init__(self, monkeypatch):
        self._kept, self._shows, self._watches, self.looks = {}, False, [], 0
        read, watch = LocalStore.read, LocalStore.watch

        def old(store, directory, deadline=None):
            self.looks += 1
            return (self._shows and self._kept.get(directory)) or read(store, directory, deadline)

        def woken(store, directory, since, key=None):
            pending = watch(store, directory, since, key)
            self._watches.append(pending)
            if self._shows:
                pending.resolve(None)
            return pending

        monkeypatch.setattr(LocalStore, "read", old)
        monkeypatch.setattr(LocalStore, "watch", woken)

    def keep(self, recipe):
        """Keep what the recipe has now."""
        directory = f"{recipe.kind}:{recipe.name}"
        self._kept[directory] = locks["default"].store.read(directory)

    def __enter__(self):
        """Show what was kept, to all who follow."""
        self._shows = True
        for pending in self._watches:
            pending.resolve(None)
        return self

    def __exit__(self, *exc_info):
        self._shows = False

    def looked(self, times=5):
        until = self.looks + times
        return eventually(lambda: self.looks >= until)


@pytest.fixture
def behind(backend_settings, settings, monkeypatch):
    def make(lease):
        settings.DISTLOCK = backend_settings("local", LEASE=lease)
        return Behind(monkeypatch)

    yield make
    locks.close_all()


class TestServersThatAreBehind:
    def test_no_older_value_follows_a_newer_one(self, behind, name):
        behind, config, seen = behind(lease=60), Config(name), []
        config.set(1)
        behind.keep(config)
        with config.watch(lambda value: seen.append(value.version)):
            eventually(lambda: seen == [1])
            config.set(2)
            eventually(lambda: seen[-1] == 2)
            with behind:
                behind.looked()
            config.set(3)
            eventually(lambda: seen[-1] == 3)
        assert seen == [1, 2, 3]

    @pytest.mark.usefixtures("soon_given_up")
    def test_one_who_cannot_write_because_others_are_always_faster_is_told(
        self, behind, name, monkeypatch
    ):
        """So it looks to him whose server stays behind."""
        behind, config = behind(lease=60), Config(name)
        config.set(1)
        behind.keep(config)
        config.set(2)
        monkeypatch.setattr("distlock.recipes.log.MOST_BUSY", 0.2)
        with behind, pytest.raises(LockUnavailable, match="others changed it before each attempt"):
            config.set(3)

    def test_a_value_that_stays_older_is_what_all_go_back_to(self, behind, name, caplog):
        behind, config, seen = behind(lease=1), Config(name), []
        config.set(1)
        behind.keep(config)
        with config.watch(lambda value: seen.append(value.version)):
            eventually(lambda: seen == [1])
            config.set(2)
            eventually(lambda: seen[-1] == 2)
            with behind:
                eventually(lambda: seen == [1, 2, 1])
        assert "have lost its newest version" in caplog.text

    def test_no_message_comes_twice(self, behind, name):
        behind, topic, heard = behind(lease=60), Topic(name), []
        topic.publish("one")
        behind.keep(topic)
        threading.Thread(target=listen, args=[topic, heard], daemon=True).start()
        topic.publish("two")
        eventually(lambda: len(heard) == 2)
        with behind:
            behind.looked()
        topic.publish("last")
        eventually(lambda: heard[-1].message == "last")
        assert [one.number for one in heard] == [1, 2, 3]


def test_an_interrupt_at_any_moment_leaves_versions_and_numbers_in_order(
    backend_settings, settings, name
):
    settings.DISTLOCK = backend_settings("local")
    config, topic = Config(name, keep=2), Topic(name, keep=2)

    def use():
        config.set(config.get().version + 1)
        topic.publish("message")
        list(config.changes(0.0001))
        list(topic.subscribe(0, timeout=0.0001))

    use()
    for moment in itertools.count(1):
        if interrupted(use, moment) is None:
            break
    assert moment > 100
    history, heard = config.history(), list(topic.subscribe(0, timeout=0))
    assert [one.value for one in history] == [one.version for one in history]
    assert history[0].version == history[1].version + 1
    assert [one.missed for one in heard] == [heard[0].number - 1, 0]
    assert config.set("next") == history[0].version + 1
    locks.close_all()


@pytest.mark.usefixtures("soon_given_up")
def test_a_value_for_which_others_were_always_faster_was_not_set(local, monkeypatch, name):
    monkeypatch.setattr(LocalStore, "apply", lambda *_: None)
    monkeypatch.setattr("distlock.recipes.log.MOST_BUSY", 0.1)
    with pytest.raises(LockUnavailable, match="others changed it before each attempt") as failed:
        Config(name).set(1)
    assert not failed.value.maybe_applied
