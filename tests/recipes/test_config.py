"""Config: one value under a name, with versions, the same in every process and backend."""

import asyncio
import contextlib
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.core.exceptions import SynchronousOnlyOperation

from distlock import Lock, StaleToken
from distlock.activity import activity
from distlock.recipes import Config
from tests.contract.actors import PATIENCE
from tests.contract.forks import forked
from tests.contract.watch import eventually
from tests.recipes.every_kind import ONE_PROCESS, pytest_generate_tests  # noqa: F401 - pytest

SETTERS, SUBSCRIBERS = 8, 32


@pytest.fixture
def config(using, name):
    return Config(name, using=using)


def at_once(*calls):
    """Make calls in threads of their own at the same moment; return what they returned."""
    barrier = threading.Barrier(len(calls))

    def call(one):
        barrier.wait()
        return one()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(call, calls))


def versions(values):
    return [value.version for value in values]


class TestValues:
    def test_one_that_was_never_set_has_version_0_and_the_default(self, config):
        assert (config.get().value, config.get(7).value, config.get().version) == (None, 7, 0)
        assert config.history() == ()

    def test_versions_are_1_2_3(self, config):
        assert [config.set({"bound": number}) for number in (10, 20, 30)] == [1, 2, 3]
        found = config.get()
        assert (found.value, found.version, found.stale) == ({"bound": 30}, 3, False)

    def test_one_wins_who_changes_a_version_and_the_others_are_told_both(self, using, name):
        def change():
            try:
                return Config(name, using=using).set("mine", if_version=0)
            except StaleToken as error:
                return str(error)

        won, *lost = sorted(at_once(*[change] * SETTERS), key=str)
        assert won == 1
        assert all("version 1" in text and "if_version=0" in text for text in lost)

    def test_the_last_one_wins_and_every_version_is_in_the_history(self, using, name):
        def change(number):
            return Config(name, using=using).set(number), number

        calls = [lambda number=number: change(number) for number in range(SETTERS)]
        made = dict(at_once(*calls))
        config = Config(name, using=using)
        assert sorted(made) == list(range(1, SETTERS + 1))
        assert {one.version: one.value for one in config.history()} == made
        assert config.get().value == made[SETTERS]

    def test_the_history_says_who_and_why(self, config):
        with activity("GET /settings"):
            config.set(1, reason="more letters")
        config.set(2, who="anna")
        newest, oldest = config.history()
        assert (newest.value, newest.who, newest.reason) == (2, "anna", "")
        assert (oldest.value, oldest.who, oldest.reason) == (1, "GET /settings", "more letters")
        assert newest.at >= oldest.at

    def test_a_rollback_is_a_new_version(self, config):
        for number in (10, 20, 30):
            config.set(number)
        assert config.rollback(1, reason="too many", who="ben") == 4
        found = config.get()
        assert (found.value, found.version, found.reason) == (10, 4, "too many")
        assert config.rollback(2, if_version=4) == 5
        with pytest.raises(StaleToken):
            config.rollback(3, if_version=4)
        with pytest.raises(ValueError, match="^version 7 of <Config .* is not kept"):
            config.rollback(7)
        assert versions(config.history()) == [5, 4, 3, 2, 1]

    def test_as_many_versions_are_kept_as_is_said(self, using, name):
        for number in range(5):
            Config(name, keep=4, using=using).set(number)
        assert versions(Config(name, using=using).history()) == [5, 4, 3, 2]
        Config(name, keep=2, using=using).set(6)
        assert versions(Config(name, using=using).history()) == [6, 5]

    @pytest.mark.parametrize(
        ("value", "error", "said"),
        [
            ({1, 2}, TypeError, "be JSON, got {1, 2}: .* not JSON serializable"),
            (float("nan"), ValueError, "be JSON, got nan: "),
            ("\ud800", ValueError, "be JSON, got '.ud800': "),
            ("x" * 65536, ValueError, "have at most 65536 bytes in JSON, with .*, got 'xxx"),
        ],
        ids=["no JSON", "no number", "no text", "too large"],
    )
    def test_what_cannot_be_kept_is_refused_by_name(self, config, value, error, said):
        with pytest.raises(error, match=f"^value must {said}"):
            config.set(value)
        assert config.get().version == 0

    @pytest.mark.parametrize(
        ("options", "error", "text"),
        [
            ({"if_version": "1"}, TypeError, "if_version must be an int, not '1'"),
            ({"if_version": True}, TypeError, "if_version must"),
            ({"reason": 7}, TypeError, "reason must be a str, not 7"),
            ({"who": "a\nb"}, ValueError, "who must not contain control characters"),
            ({"if_version": 3}, StaleToken, "has version 0, and not if_version=3"),
        ],
    )
    def test_bad_arguments_change_nothing(self, config, options, error, text):
        with pytest.raises(error, match=text):
            config.set(1, **options)
        assert config.get().version == 0

    def test_a_task_does_the_same(self, config, loop):
        async def use():
            with pytest.raises(SynchronousOnlyOperation):
                config.get()
            with pytest.raises(SynchronousOnlyOperation):
                next(config.changes())
            assert (await config.aget("none")).value == "none"
            assert await config.aset(1) == 1
            assert await config.aset(2, if_version=1, who="task") == 2
            assert await config.arollback(1) == 3
            assert versions(await config.ahistory()) == [3, 2, 1]
            async for value in config.achanges(timeout=0):
                return value.version
            return None

        assert asyncio.run_coroutine_threadsafe(use(), loop.loop).result(PATIENCE) == 3

    def test_what_a_caller_does_with_a_value_stays_with_the_caller(self, config):
        config.set({"list": []})
        config.get().value["list"].append("mine")
        assert config.get().value == {"list": []}


def follow(name, last):
    """Follow a value up to a version; return the versions that were seen."""
    seen = []
    for value in Config(name).changes(PATIENCE):
        seen.append(value.version)
        if value.version >= last:
            break
    return seen


class TestSubscribers:
    def test_a_configuration_value_is_seen_by_every_subscriber(self, actor, config, other, name):
        """In several processes, where there can be some."""
        config.set("first")
        following = [actor(other).call(follow, name, 5) for _ in range(3)]
        for number in range(2, 6):
            config.set(number)
        for future in following:
            seen = future.result(PATIENCE)
            assert seen == sorted(set(seen))
            assert seen[-1] == 5

    def test_it_begins_with_the_value_as_it_is_and_nothing_is_missed_after_that(self, config):
        config.set("first")
        changes = config.changes(PATIENCE)
        assert next(changes).value == "first"
        config.set("second")
        assert next(changes).value == "second"
        config.set("third")
        config.set("fourth")
        assert next(changes).value == "fourth"
        assert list(config.changes(timeout=0)) == [config.get()]

    @pytest.mark.usefixtures("only_hints")
    def test_one_change_costs_each_of_many_subscribers_one_look(
        self, using, backend, name, monkeypatch
    ):
        """However much of its history is kept, and whatever else happens."""
        config, seen, asked = Config(name, using=using), [], []
        for number in range(3):
            config.set(number)
        look, read = type(backend.store).look, type(backend.store).read

        def counted(store, directory, keys, deadline=None):
            if directory == f"config:{name}":
                asked.append(tuple(keys))
            return look(store, directory, keys, deadline)

        def counted_read(store, directory, *args):
            if directory == f"config:{name}":
                asked.append("everything")
            return read(store, directory, *args)

        with contextlib.ExitStack() as watches:
            for _ in range(SUBSCRIBERS):
                watches.enter_context(config.watch(lambda value: seen.append(value.version)))
            eventually(lambda: seen.count(3) == SUBSCRIBERS)
            monkeypatch.setattr(type(backend.store), "look", counted)
            if backend.store.look.__qualname__.startswith("RecordStore"):
                monkeypatch.setattr(type(backend.store), "read", counted_read)
            config.set("last")
            eventually(lambda: seen.count(4) == SUBSCRIBERS)
            count = len(asked)
            monkeypatch.undo()
        # One look of the setter, one of each subscriber; and those who are woken for nothing.
        assert SUBSCRIBERS < count <= 1.5 * SUBSCRIBERS
        assert set(asked) == {("last",)}


class TestWatches:
    def test_a_slow_callback_delays_no_other_and_gets_the_last_value(self, config):
        held, quick, slow, entered = threading.Event(), [], [], threading.Event()

        def wait(value):
            slow.append(value.version)
            entered.set()
            held.wait(PATIENCE)

        with config.watch(wait), config.watch(lambda value: quick.append(value.version)):
            config.set(1)
            assert entered.wait(PATIENCE)
            for version in (2, 3, 4):
                config.set(version)
                eventually(lambda: quick and quick[-1] == version)  # noqa: B023 - called at once
            assert slow == [1]
            held.set()
            eventually(lambda: slow[-1] == 4)
        assert slow == sorted(set(slow))

    def test_an_error_is_logged_and_the_next_change_is_told(self, config, caplog):
        seen = []

        def fail(value):
            seen.append(value.version)
            raise SystemExit("callback")

        with config.watch(fail):
            config.set(1)
            eventually(lambda: seen == [1])
            config.set(2)
            eventually(lambda: seen == [1, 2])
        assert "a callback for changes of" in caplog.text

    def test_what_was_closed_or_collected_calls_no_more(self, config):
        class Cache:
            def __init__(self, seen):
                self.seen = seen
                self.watch = config.watch(self.on_change)

            def on_change(self, value):
                self.seen.append(value.version)

        closed, collected, going_on = [], [], []
        one, two = Cache(closed), Cache(collected)
        with config.watch(lambda value: going_on.append(value.version)):
            config.set(1)
            eventually(lambda: closed == collected == [1])
            one.watch.close()
            one.watch.close()
            known = weakref.ref(two)
            del two
            # The thread that calls it may not have let go of it.
            eventually(lambda: gc.collect() >= 0 and known() is None)
            config.set(2)
            eventually(lambda: going_on[-1] == 2)
            eventually(lambda: config.get().version == 2)
        assert (closed, collected) == ([1], [1])
        eventually(lambda: not any(one.name == "distlock-watch" for one in threading.enumerate()))

    def test_it_goes_on_in_the_child_of_a_fork(self, kind, config, way):
        """A server imports everything, and then it forks its workers."""
        seen, mine = [], []

        def in_child():
            assert not Lock("any").held  # without hooks, the first use tells that it is a child
            if kind in ONE_PROCESS:
                config.set("the child's own")
            eventually(lambda: mine)
            return mine

        config.set("first")
        with config.watch(seen.append):
            eventually(lambda: seen)
            with config.watch(lambda value: mine.append(value.value)):
                eventually(lambda: mine)
                mine.clear()
                found = forked(in_child, way=way)
        assert found == ["the child's own" if kind in ONE_PROCESS else "first"]
        assert mine == []

    @pytest.mark.parametrize("callback", [None, 7])
    def test_what_cannot_be_called_is_refused(self, config, callback):
        with pytest.raises(TypeError, match="^callback must be callable"):
            config.watch(callback)


def test_a_value_that_was_just_seen_may_be_read_again_without_asking(config):
    config.set({"rate": 20})
    assert config.get(max_age=60) == config.get(max_age=0)
    assert config.get(max_age=60).stale is False
