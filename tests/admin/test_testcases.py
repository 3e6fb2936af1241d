"""The panel in a project's own test cases, whose transactions nobody else sees."""

import pytest
from django.contrib.auth.models import User
from django.test import TestCase
from django.urls import reverse

from distlock import Lock, LockLost
from distlock.admin.locks import HoldRef
from distlock.conf import locks
from distlock.models import DatabaseLock


@pytest.mark.usefixtures("sqlite", "site")
class PanelInTestCase(TestCase):
    """Each test runs in a transaction that is rolled back."""

    def setUp(self):
        super().setUp()
        settings = {"DISTLOCK": {"default": {"BACKEND": _BACKEND}}}
        self.enterContext(self.settings(**settings))
        self.addCleanup(locks.close_all)
        self.client.force_login(User.objects.create_superuser("tester"))

    def test_it_shows_what_the_test_holds(self):
        with Lock("held in a test"):
            page = self.client.get(reverse("admin:distlock_heldlock_changelist"))
        self.assertContains(page, "held in a test")
        self.assertEqual(page.context["overview"].silent, [])

    def test_the_front_page_counts_it(self):
        DatabaseLock.objects.all().delete()  # what others have left
        with Lock("held in a test"):
            page = self.client.get(reverse("admin:index"))
        self.assertContains(page, "No lease ends soon or has expired.")

    @pytest.mark.slow
    def test_it_releases_what_the_test_holds(self):
        lock = Lock("held in a test")
        lock.acquire()
        ref = str(HoldRef.of(lock.info()))
        self.client.post(
            reverse("admin:distlock_heldlock_release"),
            {"hold": [ref], "confirmed": "yes", "reason": "a test"},
        )
        with self.assertRaises(LockLost):
            lock.release()


_BACKEND = "distlock.backends.database.DatabaseBackend"
