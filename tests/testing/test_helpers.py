"""``distlock.testing`` under Django's test runner and under pytest, each in its own process."""

import os
import re
import subprocess
import sys
import threading
import tomllib
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connections

from distlock import Lock, LockBusy, LockLost, LockNotHeld, LockTimeout, locks
from distlock.recipes import (
    Barrier,
    Config,
    Election,
    Event,
    Group,
    Mailbox,
    Names,
    Progress,
    Queue,
    RWLock,
    Semaphore,
    Topic,
)
from distlock.testing import LeakedLock, held_elsewhere, isolated_locks
from tests.databases import ALIASES

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[2]
LEAKS = [
    ("1_leaks", "leaked"),
    ("3_leaks_what_was_broken", "broken"),
    ("7_leaks_in_a_task", "of a task"),
]


def run_tests():
    """Run the sample cases as ``manage.py test`` does."""
    from django.conf import settings

    settings.DISTLOCK["default"]["OPTIONS"].pop("idle", None)  # as a project has it
    for connection in connections.all():
        connection.settings_dict["TEST"]["DEPENDENCIES"] = []  # the default one may not be needed
    call_command("test", "tests.testing.sample_cases", verbosity=1, interactive=False)


@pytest.mark.parametrize(
    "kind",
    [
        "local",
        "sqlite",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("postgresql", "mariadb")),
    ],
)
def test_a_leak_fails_its_test_alone_and_by_name(kind, child, backend_settings, settings):
    settings.DISTLOCK = backend_settings(kind)
    process = child(run_tests, env={"DISTLOCK_SAMPLE_KIND": "sqlite" if kind == "local" else kind})
    process.wait(110)
    said = process.errors
    failed = re.findall(
        r"^(?:FAIL|ERROR): test_(\S+) .*?\.(\w+)\.test_.*?LeakedLock: (lock '.*?')",
        said,
        re.M | re.S,
    )
    expected = [
        (test, case, f"lock '{name}'")
        for case in ("InTestCase", "InTransactionTestCase")
        for test, name in LEAKS
    ]
    assert sorted(failed) == sorted([*expected, ("1_leaks", "Decorated", "lock 'decorated'")]), said
    assert re.search(r"^FAILED \(failures=7\)$", said, re.M), said
    assert "distlock.W00" not in said


SAMPLE = """
import pytest
from distlock import Lock
from distlock.recipes import Queue
from distlock.testing import held_elsewhere

@pytest.fixture
def stock():
    with Lock("of a fixture") as lock:
        yield lock

def test_leaks():
    Lock("leaked").acquire()

def test_finds_it_free(stock):
    with Lock("leaked", on_busy="raise", owner="another"):
        stock.check()

@pytest.mark.django_db
def test_leaks_beside_the_database(django_user_model):
    django_user_model.objects.create(username="x")
    Lock("beside the database").acquire()

@pytest.mark.django_db
def test_finds_that_free(django_user_model):
    assert not django_user_model.objects.exists()
    with Lock("beside the database", on_busy="raise", owner="another"):
        pass

def test_leaks_with_the_database_as_an_argument(db):
    Lock("beside the database").acquire()

def test_finds_that_free_again(transactional_db):
    with Lock("beside the database", on_busy="raise", owner="another"):
        pass

@pytest.mark.django_db
def test_leaks_under_the_mark():
    Lock("under the mark").acquire()
    Queue("orders").put("first")

@pytest.mark.django_db(transaction=True)
def test_finds_that_free_under_the_mark():
    with Lock("under the mark", on_busy="raise", owner="another"):
        assert Queue("orders").qsize() == 0

@pytest.mark.django_db
def test_is_kept_out():
    with held_elsewhere("elsewhere"):
        assert not Lock("elsewhere").acquire(blocking=False)
"""
SETTINGS = """
SECRET_KEY = "x"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "distlock"]
DATABASES = {"default": %r}
DISTLOCK = {"default": {"BACKEND": "distlock.backends.%s"}}
"""
INI = """
[pytest]
DJANGO_SETTINGS_MODULE = sample_settings
pythonpath = . %s
addopts = -p distlock.testing.pytest_plugin -p no:cacheprovider -rA
usefixtures = isolated_locks
"""


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("local", marks=pytest.mark.slow),
        pytest.param("sqlite", marks=pytest.mark.slow),
        "postgresql",
    ],
)
def test_the_fixture_of_pytest_does_the_same(tmp_path, kind, request):
    sample, backend = SAMPLE, "local.LocalBackend"
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    if kind == "postgresql":
        request.getfixturevalue(kind)
        running = connections[ALIASES[kind]].settings_dict
        database = {key: running[key] for key in ("ENGINE", "HOST", "PORT", "USER", "PASSWORD")}
        database["NAME"] = f"sample_{kind}"
    if kind != "local":
        backend = (
            "database.DatabaseBackend"  # whose locks are where tests may not be without asking
        )
        sample = re.sub(
            r"def test_(leaks|finds_it_free)\(", r"@pytest.mark.django_db\n\g<0>", sample
        )
    (tmp_path / "test_sample.py").write_text(sample)
    (tmp_path / "sample_settings.py").write_text(SETTINGS % (database, backend))
    (tmp_path / "pytest.ini").write_text(INI % ROOT)
    code, said = run_pytest(tmp_path)
    passed = set(re.findall(r"^PASSED test_sample.py::(\w+)", said, re.M))
    errors = dict(
        re.findall(r"^ERROR test_sample.py::(\w+) - .*?LeakedLock: (lock '.*?')", said, re.M)
    )
    assert errors == {
        "test_leaks": "lock 'leaked'",
        "test_leaks_beside_the_database": "lock 'beside the database'",
        "test_leaks_with_the_database_as_an_argument": "lock 'beside the database'",
        "test_leaks_under_the_mark": "lock 'under the mark'",
    }, said
    assert passed >= {
        "test_finds_it_free",
        "test_finds_that_free",
        "test_finds_that_free_again",
        "test_finds_that_free_under_the_mark",
        "test_is_kept_out",
    }, said
    assert "FAILED" not in said
    assert code == 1


def test_the_plugin_disturbs_nobody_who_does_not_ask_for_it(tmp_path):
    """pytest loads it in every project of the environment, also where there is no Django."""
    (tmp_path / "test_sample.py").write_text("def test_sample():\n    pass\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")  # else one of a folder above counts
    code, said = run_pytest(
        tmp_path, "-p", "no:django", "-p", "no:asyncio", "-p", plugin(), "-W", "error"
    )
    assert (code, "1 passed" in said) == (0, True), said


def test_the_plugin_is_found_by_pytest():
    assert hasattr(import_module(plugin()), "isolated_locks")


def plugin():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project["entry-points"]["pytest11"]["distlock"]


def run_pytest(folder, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "300"}
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
    )
    return run.returncode, run.stdout + run.stderr


KINDS = ["local", "sqlite", "mariadb", "postgresql", "zookeeper", "etcd"]


def use_every_recipe():
    """Make a record of each kind."""
    Queue("orders").put("first")
    Mailbox("letters", 3).put("first")
    Topic("news").publish("first")
    Config("rates").set(1)
    Event("open").set()
    with Semaphore("mail", 2), RWLock("stock").reader(), Group("workers"):
        pass
    with Election("beat"):
        pass
    with Progress("import", 3) as progress:
        progress.advance()
    names = Names("shards")
    names.unique_number()
    with names.register("a", "10.0.0.7:631"):
        pass
    Barrier("start", 1).wait()


class TestTheContextManager:
    def test_lets_the_error_of_its_body_go_first(self, local):
        with pytest.raises(ZeroDivisionError) as raised, isolated_locks():
            Lock("stock").acquire()
            raise ZeroDivisionError
        assert "lock 'stock' on 'default' was not left by the test" in raised.value.__notes__[0]
        assert not Lock("stock").locked()

    @pytest.mark.parametrize("kind", KINDS)
    def test_frees_what_is_left_on_every_backend(self, kind, backend_settings, settings):
        settings.DISTLOCK = backend_settings(kind)
        with pytest.raises(LeakedLock, match="'stock'"), isolated_locks():
            Lock("stock").acquire()
            if kind != "zookeeper":  # where it is not told from what a thread is about to leave
                with Lock("kept", at_least=600):
                    pass
        for name in ("stock", "kept"):
            with Lock(name, timeout=20):
                pass
        locks.close_all()

    @pytest.mark.parametrize("kind", ["local", "mariadb"])
    def test_frees_seats_that_are_left(self, kind, backend_settings, settings):
        settings.DISTLOCK = backend_settings(kind)
        seat, reader = Semaphore("mailer", 1), RWLock("catalogue").reader()
        with pytest.raises(LeakedLock, match="'mailer'.*'catalogue'"), isolated_locks():
            seat.acquire()
            reader.acquire()
        with Semaphore("mailer", 1, timeout=20), RWLock("catalogue", timeout=20).writer():
            pass
        locks.close_all()

    @pytest.mark.parametrize("kind", KINDS)
    def test_removes_what_recipes_have_made(self, kind, backend_settings, settings):
        settings.DISTLOCK = backend_settings(kind)
        with isolated_locks():
            use_every_recipe()
            assert [*locks["default"].store.directories()]
        assert [*locks["default"].store.directories()] == []
        locks.close_all()

    @pytest.mark.parametrize("kind", KINDS)
    def test_leaves_alone_what_recipes_had_before(self, kind, backend_settings, settings):
        settings.DISTLOCK = backend_settings(kind)
        queue, rates = Queue("orders"), Config("rates")
        queue.put("first")
        with Semaphore("mail", 2), isolated_locks():
            queue.put("second")
            rates.set(1)
            with Semaphore("mail", 2):
                pass
        assert queue.qsize() == 1
        with queue.get() as delivery:
            assert delivery.body == "first"
        assert rates.get().value is None
        assert rates.get(max_age=60).value is None
        assert Semaphore("mail", 2).info().slots == 2
        locks.close_all()

    def test_forgets_what_this_process_has_seen_of_a_value(self, local):
        with isolated_locks():
            Config("rates").set(1)
        assert Config("rates").get(max_age=60).value is None

    def test_removes_what_an_object_keeps_that_is_garbage(self, local):
        with isolated_locks():
            Group("workers").join()
            Queue("orders").put("first")
            Queue("orders").get()
            with suppress(threading.BrokenBarrierError):
                Barrier("start", 2).wait(timeout=0)
        assert [*local.store.directories()] == []

    def test_leaves_alone_what_goes_on(self, local):
        with isolated_locks():
            workers = Group("workers")
            workers.join()
            Config("rates").set(1)
        assert [*local.store.directories()] == ["group:workers"]
        assert len(workers.members()) == 1
        workers.leave()

    def test_ends_where_a_store_was_closed_meanwhile(self, backend_settings, settings):
        settings.DISTLOCK = backend_settings("sqlite")
        with isolated_locks():
            Queue("orders").put("first")
            locks.close_all()
        assert Queue("orders").qsize() == 1
        locks.close_all()

    def test_leaves_alone_what_was_held_before(self, local):
        with Lock("stock") as lock:
            with isolated_locks(), Lock("stock"):
                pass
            lock.verify()

    def test_tells_of_a_level_that_was_not_left(self, local):
        with Lock("stock") as lock:
            with pytest.raises(LeakedLock, match="'stock'"), isolated_locks():
                lock.acquire()
            lock.release()

    def test_leaves_alone_what_others_hold(self, child, backend_settings, settings):
        from tests.commands.processes import hold

        settings.DISTLOCK = backend_settings("sqlite")
        holder = child(hold, "stock")
        token = int(holder.line())
        with isolated_locks(), Lock("other"):
            pass
        assert Lock("stock").info().token == token
        holder.tell("go on")
        holder.finish()

    def test_ends_what_a_name_holds(self, local):
        lock = Lock("order", owner="checkout-77", lease=600, renew=False)
        with pytest.raises(LeakedLock, match="'order'"), isolated_locks():
            lock.acquire()
        with pytest.raises(LockNotHeld):
            lock.release()
        assert not lock.locked()


class TestHeldElsewhere:
    @pytest.mark.parametrize("kind", KINDS)
    def test_keeps_this_thread_out_until_its_end(self, kind, backend_settings, settings):
        settings.DISTLOCK = backend_settings(kind)
        with held_elsewhere("stock"):
            assert Lock("stock").locked()
            assert not Lock("stock").acquire(blocking=False)
            with pytest.raises(LockTimeout):
                Lock("stock", timeout=0.1).__enter__()
        with Lock("stock", timeout=20):
            pass
        locks.close_all()

    def test_takes_any_lock(self, local):
        seat = Semaphore("mail", 2)
        with held_elsewhere(seat, seat, RWLock("stock").reader(), "report"):
            assert not seat.acquire(blocking=False)
            assert not RWLock("stock").writer().acquire(blocking=False)
            assert not Lock("report").acquire(blocking=False)
        with seat, RWLock("stock").writer(), Lock("report"):
            pass

    def test_raises_if_a_lock_is_not_free_and_leaves_the_others(self, local):
        with Lock("stock"):
            with pytest.raises(LockBusy, match="'stock'"), held_elsewhere("other", "stock"):
                raise AssertionError("the body ran")
            assert not Lock("other").locked()

    def test_lets_the_lock_be_broken(self, local):
        with held_elsewhere("stock"):
            lock = Lock("stock")
            lock.force_release(lock.info().token)
            assert lock.acquire(blocking=False)
            lock.release()

    def test_raises_what_a_later_lock_raises(self, local):
        class Lost(Lock):
            def acquire(self, *args, **options):
                raise LockLost("on the way")

        with pytest.raises(LockLost, match="on the way"), held_elsewhere("stock", Lost("other")):
            raise AssertionError("the body ran")
        assert not Lock("stock").locked()

    def test_ends_with_an_error_of_the_body(self, local):
        with pytest.raises(ZeroDivisionError), held_elsewhere("stock"):
            raise ZeroDivisionError
        assert not Lock("stock").locked()

    async def test_keeps_tasks_out(self, local):
        with held_elsewhere("stock"):
            assert not await Lock("stock").aacquire(timeout=0.1)
        async with Lock("stock"):
            pass
