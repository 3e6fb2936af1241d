"""Locks in the test cases of a project, inside the transaction that Django wraps around each."""

import asyncio
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.db import transaction
from django.test import SimpleTestCase, TestCase, TransactionTestCase, override_settings

from distlock import Lock, LockError, LockLost, LockNotHeld, locks
from distlock.models import DatabaseLock
from distlock.testing import IsolatedLocksMixin
from tests.contract.watch import eventually
from tests.databases import ALIASES, SERVERS

GROUP = "written under the lock"


def entry(kind, **more):
    return {
        "default": {
            "BACKEND": "distlock.backends.database.DatabaseBackend",
            "OPTIONS": {"database": ALIASES[kind]},
            **more,
        }
    }


class Cases:
    """What a project's tests do with locks."""

    kind: str

    @property
    def database(self):
        return ALIASES[self.kind]

    def write(self):
        Group.objects.using(self.database).create(name=GROUP)

    def run(self, result=None):
        with override_settings(DISTLOCK=entry(self.kind)):
            super().run(result)

    def test_a_lock_is_taken_and_freed(self):
        self.write()
        with Lock("in a test case") as lock:
            assert lock.held
            assert lock.locked()
            lock.verify()
        assert not lock.locked()

    def test_the_same_lock_again(self):
        """What a test before this one left must not be in the way."""
        with Lock("in a test case", on_busy="raise") as lock:
            self.write()
            assert lock.token > 0

    def test_several_threads_at_once(self):
        """On SQLite they share the connection of the test case, which one at a time may use."""
        self.write()

        def work(name):
            for _ in range(40):
                with Lock(name, on_busy="raise") as lock:
                    assert lock.locked()
            return name

        names = [f"of thread {number}" for number in range(4)]
        with ThreadPoolExecutor() as threads:
            assert list(threads.map(work, names)) == names

    def test_under_an_atomic_block(self):
        with transaction.atomic(using=self.database), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.write()
            with Lock("in a block"):
                self.write_more()

    def write_more(self):
        Group.objects.using(self.database).create(name=f"{GROUP}, too")

    def test_a_transaction_under_the_lock(self):
        lock = Lock("around a transaction")
        with lock.atomic():
            self.write()
            assert lock.held
        assert Group.objects.using(self.database).filter(name=GROUP).exists()
        assert not lock.locked()
        with lock.atomic():
            pass

    def test_a_transaction_under_the_lock_that_fails(self):
        lock = Lock("around a transaction that fails")
        with self.assertRaises(ZeroDivisionError), lock.atomic():
            self.write()
            raise ZeroDivisionError
        assert not Group.objects.using(self.database).filter(name=GROUP).exists()
        assert not lock.locked()

    def test_a_transaction_in_a_transaction_is_still_refused(self):
        with (
            transaction.atomic(using=self.database),
            self.assertRaises(LockError),
            Lock("nested").atomic(),
        ):
            raise AssertionError("the body ran")

    def test_a_lock_that_is_kept_until_the_commit(self):
        """It is, until the outermost block ends that is not the test case's own."""
        with Lock("kept", release="commit") as lock:
            self.write()
        assert not lock.locked()
        for fails in (False, True):
            with suppress(ZeroDivisionError), transaction.atomic(using=self.database):
                with suppress(ZeroDivisionError), transaction.atomic(using=self.database):
                    with lock:
                        pass
                    raise ZeroDivisionError
                if self.kind in SERVERS:  # on SQLite the transaction itself frees it
                    assert lock.locked()
                if fails:
                    raise ZeroDivisionError
            eventually(lambda: not lock.locked())
            eventually(lambda: not lock.held)

    def test_a_lock_that_is_not_held(self):
        with self.assertRaises(LockNotHeld):
            Lock("nobody's").release()

    async def test_async_code(self):
        await sync_to_async(self.write)()
        async with Lock("async") as lock:
            assert lock.held
            assert await lock.alocked()
            await lock.averify()
        assert not await lock.alocked()

    async def test_async_and_sync_code_exclude_each_other(self):
        async with Lock("both"):
            assert not await asyncio.create_task(sync_to_async(tries)("both"))
        await asyncio.sleep(0)


def tries(name):
    lock = Lock(name)
    if got := lock.acquire(blocking=False):
        lock.release()
    return got


class InSQLite(Cases, TestCase):
    kind = "sqlite"
    databases = {"default"}


class InMemory(Cases, TestCase):
    kind = "memory"
    databases = {"memory"}


class OnMariaDB(Cases, TestCase):
    kind = "mariadb"
    databases = {"mariadb"}


class OnPostgreSQL(Cases, TestCase):
    kind = "postgresql"
    databases = {"postgresql"}


@override_settings(DISTLOCK=entry("postgresql", RELEASE="commit"))
class Kept(IsolatedLocksMixin, TestCase):
    """Locks that are kept until the commit, in a test case in which nothing is committed."""

    databases = {"postgresql"}

    def setUp(self):
        self.order = []

    @transaction.atomic(using="postgresql")
    def work(self):
        with Lock("kept in a test case"):
            transaction.on_commit(lambda: self.order.append(self.locked()), using="postgresql")
        self.order.append(self.locked())

    def locked(self):
        return Lock("kept in a test case").locked()

    def test_they_are_free_after_the_work_and_before_its_callbacks(self):
        with self.captureOnCommitCallbacks(using="postgresql", execute=True) as callbacks:
            self.work()
            assert not self.locked()
        assert len(callbacks) == 1  # only what the work has registered
        assert self.order == [True, False]

    def test_they_are_free_without_callbacks_too(self):
        self.work()
        self.work()
        assert not self.locked()
        assert self.order == [True, True]

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        locks.close_all()


class WithoutTransaction(Cases, TransactionTestCase):
    kind = "sqlite"
    databases = {"default"}


class InMemoryWithoutTransaction(Cases, TransactionTestCase):
    kind = "memory"
    databases = {"memory"}


@override_settings(DISTLOCK=entry("sqlite"))
class RolledBack(TestCase):
    """The lock that the first of these takes and leaves is gone with its transaction."""

    databases = {"default"}

    def test_1_is_left_without_release(self):
        assert Lock("left behind").acquire(blocking=False)

    def test_2_finds_nothing(self):
        assert not DatabaseLock.objects.filter(lock="left behind").exists()

    @classmethod
    def tearDownClass(cls):
        with suppress(LockLost):
            Lock("left behind").release()
        super().tearDownClass()
        locks.close_all()


@override_settings(DISTLOCK=entry("sqlite"))
class Simple(SimpleTestCase):
    """A test case that may not use databases may not use their locks."""

    def test_is_refused(self):
        with self.assertRaises(AssertionError):
            Lock("where no database may be used").acquire(blocking=False)


@pytest.fixture(autouse=True)
def closed():
    yield
    locks.close_all()
