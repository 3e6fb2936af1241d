"""Test cases of a project that uses locks; test_testcases.py has Django's test runner run them."""

import os
import threading

from django.contrib.auth.models import Group
from django.db import connections
from django.test import TestCase, TransactionTestCase

from distlock import Lock, LockBusy
from tests.databases import ALIASES

DATABASE = ALIASES[os.environ.get("DISTLOCK_SAMPLE_KIND", "sqlite")]


def take_elsewhere(name, seen):
    seen.append(Lock(name, on_busy="raise").acquire())
    for connection in connections.all(initialized_only=True):
        connection.close()


class Cases:
    databases = {DATABASE}

    def test_a_lock_is_taken_and_left(self):
        with Lock("sample") as lock:
            self.assertTrue(lock.held)
            lock.verify()
            self.assertTrue(lock.locked())
        self.assertFalse(lock.locked())

    def test_it_is_free_for_the_next_test(self):
        self.test_a_lock_is_taken_and_left()

    def test_it_is_entered_again(self):
        with Lock("sample"), Lock("sample") as again:
            self.assertTrue(again.held)

    def test_the_code_under_test_may_use_transactions(self):
        with Lock("sample").atomic():
            Group.objects.using(DATABASE).create(name="sample")
        self.assertEqual(Group.objects.using(DATABASE).count(), 1)

    def test_what_the_code_under_test_wrote_is_not_there_in_the_next_test(self):
        self.test_the_code_under_test_may_use_transactions()

    def test_tokens_grow(self):
        tokens = []
        for _ in range(3):
            with Lock("sample") as lock:
                tokens.append(lock.token)
        self.assertEqual(tokens, sorted(set(tokens)))

    def test_the_same_lock_under_an_owners_name_is_busy(self):
        mine = Lock("sample", on_busy="raise")
        with Lock("sample", owner="someone"), self.assertRaises(LockBusy):
            mine.__enter__()


class InTestCase(Cases, TestCase):
    """Each test runs in a transaction that is rolled back."""


class InTransactionTestCase(Cases, TransactionTestCase):
    """Each test's transactions are real, and the tables are emptied after it."""

    def test_threads_exclude_each_other(self):
        seen = []
        with Lock("sample"):
            thread = threading.Thread(target=take_elsewhere, args=("sample", seen))
            thread.start()
            thread.join()
        self.assertEqual(seen, [False])


class LeftOver(TestCase):
    """A test that forgets to leave its lock does not harm those that follow."""

    databases = {DATABASE}

    def test_1_forgets(self):
        Lock("forgotten").acquire()

    def test_2_finds_its_own(self):
        self.assertTrue(Lock("forgotten", timeout=10).acquire())
