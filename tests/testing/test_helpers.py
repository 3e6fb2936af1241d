"""``distlock.testing`` under Django's test runner and under pytest, each in its own process."""

import os
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connections

from distlock import Lock, LockNotHeld, locks
from distlock.recipes import RWLock, Semaphore
from distlock.testing import LeakedLock, isolated_locks

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

@pytest.fixture
def stock():
    with Lock("of a fixture") as lock:
        yield lock

def test_leaks():
    Lock("leaked").acquire()

def test_finds_it_free(stock):
    with Lock("leaked", blocking=False, owner="another"):
        stock.check()

@pytest.mark.django_db
def test_leaks_beside_the_database(django_user_model):
    django_user_model.objects.create(username="x")
    Lock("beside the database").acquire()

@pytest.mark.django_db
def test_finds_that_free(django_user_model):
    assert not django_user_model.objects.exists()
    with Lock("beside the database", blocking=False, owner="another"):
        pass

def test_leaks_with_the_database_as_an_argument(db):
    Lock("beside the database").acquire()

def test_finds_that_free_again(transactional_db):
    with Lock("beside the database", blocking=False, owner="another"):
        pass
"""
SETTINGS = """
SECRET_KEY = "x"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "distlock"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
DISTLOCK = {"default": {"BACKEND": "distlock.backends.%s"}}
"""
INI = """
[pytest]
DJANGO_SETTINGS_MODULE = sample_settings
pythonpath = . %s
addopts = -p distlock.testing.pytest_plugin -p no:cacheprovider -rA
usefixtures = isolated_locks
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["local.LocalBackend", "database.DatabaseBackend"])
def test_the_fixture_of_pytest_does_the_same(tmp_path, backend):
    sample = SAMPLE
    if backend.startswith("database"):  # whose locks are where tests may not be without asking
        sample = re.sub(
            r"def test_(leaks|finds_it_free)\(", r"@pytest.mark.django_db\n\g<0>", sample
        )
    (tmp_path / "test_sample.py").write_text(sample)
    (tmp_path / "sample_settings.py").write_text(SETTINGS % backend)
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
    }, said
    assert passed >= {"test_finds_it_free", "test_finds_that_free", "test_finds_that_free_again"}
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


class TestTheContextManager:
    def test_lets_the_error_of_its_body_go_first(self, local):
        with pytest.raises(ZeroDivisionError) as raised, isolated_locks():
            Lock("stock").acquire()
            raise ZeroDivisionError
        assert "lock 'stock' on 'default' was not left by the test" in raised.value.__notes__[0]
        assert not Lock("stock").locked()

    @pytest.mark.parametrize(
        "kind", ["local", "sqlite", "mariadb", "postgresql", "zookeeper", "etcd"]
    )
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
