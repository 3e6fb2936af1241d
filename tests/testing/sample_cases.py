"""Test cases of a project, some of which leak a lock; test_helpers.py has Django run them."""

import os
import threading

from celery import Celery
from django.test import SimpleTestCase, TestCase, TransactionTestCase

from distlock import Lock, LockLost
from distlock.celery import AlreadyQueued, LockedTask
from distlock.recipes import Queue
from distlock.testing import IsolatedLocksMixin, held_elsewhere, isolated_locks
from tests.databases import ALIASES

DATABASE = ALIASES[os.environ.get("DISTLOCK_SAMPLE_KIND", "sqlite")]


class Cases:
    databases = {DATABASE}

    def test_1_leaks(self):
        Lock("leaked").acquire()

    def test_2_finds_it_free(self):
        with Lock("leaked", on_busy="raise", owner="another"):
            pass

    def test_3_leaks_what_was_broken(self):
        lock = Lock("broken")
        lock.acquire()
        lock.force_release(lock.token)
        with self.assertRaises(LockLost):
            lock.verify()

    def test_4_can_take_it(self):
        with Lock("broken", on_busy="raise"):
            pass

    def test_5_keeps_it_taken_for_a_while(self):
        with Lock("kept", at_least=600):
            pass

    def test_6_need_not_wait(self):
        with Lock("kept", on_busy="raise"):
            pass

    async def test_7_leaks_in_a_task(self):
        await Lock("of a task").aacquire()

    def test_8_finds_that_free(self):
        with Lock("of a task", on_busy="raise"):
            pass

    def test_a_leaves_an_item(self):
        self.assertEqual(Queue("orders").qsize(), 0)
        Queue("orders").put("first")

    test_b_finds_none = test_a_leaves_an_item

    def test_c_is_kept_out(self):
        with held_elsewhere("elsewhere"):
            self.assertFalse(Lock("elsewhere").acquire(blocking=False))
        with Lock("elsewhere", timeout=20):
            pass


class InTestCase(IsolatedLocksMixin, Cases, TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.of_all = Lock("of all tests", owner="the class")
        cls.of_all.acquire()

    @classmethod
    def tearDownClass(cls):
        cls.of_all.release()
        super().tearDownClass()

    def setUp(self):
        self.enterContext(Lock("of each test"))  # left by a clean-up
        super().setUp()

    def test_9_has_that_of_its_class(self):
        self.of_all.verify()


class InTransactionTestCase(IsolatedLocksMixin, Cases, TransactionTestCase):
    def test_9_waits_for_a_thread_that_is_about_to_leave(self):
        inside = threading.Event()

        def work():
            with Lock("of a thread"):
                inside.set()
                threading.Event().wait(0.1)

        threading.Thread(target=work).start()
        inside.wait()


class InSimpleTestCase(IsolatedLocksMixin, SimpleTestCase):
    def test_may_ask_nothing(self):
        pass


class Decorated(TestCase):
    databases = {DATABASE}

    @isolated_locks()
    def test_1_leaks(self):
        Lock("decorated").acquire()

    @isolated_locks()
    def test_2_finds_it_free(self):
        with Lock("decorated", on_busy="raise"):
            pass


def sample(number):
    """Do nothing."""


class Queueing(IsolatedLocksMixin, TestCase):
    """No worker runs here: what a test queues is never started, and keeps its queueing lock."""

    databases = {DATABASE}

    def setUp(self):
        super().setUp()
        app = Celery("sample", broker="memory://", set_as_current=False)
        self.task = app.task(
            sample,
            name="sample",
            base=LockedTask,
            queueing_lock="sample:{number}",
            on_queued="raise",
        )

    def test_1_queues(self):
        self.task.delay(7)
        with self.assertRaises(AlreadyQueued):
            self.task.delay(7)

    def test_2_queues_anew(self):
        self.task.delay(7)
