"""Users with and without the rights, backends of several kinds, and locks in them."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.contrib.sessions.models import Session
from django.test import Client
from django.urls import reverse
from django.utils import translation

from distlock import Lock, LockUnavailable, fan_out
from distlock.admin import views
from distlock.conf import locks
from distlock.types.lease import State
from tests.admin import holders
from tests.contract.watch import eventually

#: Seconds that pages wait for a backend.
USUAL_TIMEOUT = fan_out.TIMEOUT

#: The permissions of each kind of the coordination family: to see it, and to do things.
COORDINATION = {
    "election": ("view_election", "appoint_leader", "step_down_leader"),
    "group": ("view_group",),
    "queue": ("view_queue", "retry_dead_letter", "release_delivery", "purge_queue"),
    "barrier": ("view_barrier",),
    "doublebarrier": ("view_doublebarrier",),
    "event": ("view_event",),
    "countdownlatch": ("view_countdownlatch",),
    "counter": ("view_counter",),
    "ratelimiter": ("view_ratelimiter",),
    "topic": ("view_topic",),
    "names": ("view_names",),
    "progress": ("view_progress", "cancel_progress"),
    "config": ("view_config", "edit_config"),
}

RIGHTS = {
    "nobody": None,  # not even of the staff
    "staff": (),
    "viewer": ("view_databaselock",),
    "breaker": ("view_databaselock", "force_release_lock"),
    "sweeper": ("view_databaselock", "sweep_locks"),
    "blind": ("force_release_lock", "sweep_locks"),  # may do, but not see
    "operator": ("view_databaselock", "force_release_lock", "sweep_locks", "view_error_text"),
}
#: Those who may see the coordination family, and do something with it.
FAMILY = {
    "observer": tuple(f"view_{kind}" for kind in COORDINATION),
    "coordinator": (
        *(right for rights in COORDINATION.values() for right in rights),
        "view_error_text",
    ),
}


@pytest.fixture(scope="module")
def users(sqlite):
    """The users by what they may do."""
    made = {}
    for name, permissions in {**RIGHTS, **FAMILY}.items():
        user = User.objects.create_user(name, is_staff=permissions is not None)
        for codename in permissions or ():
            user.user_permissions.add(
                Permission.objects.get(content_type__app_label="distlock", codename=codename)
            )
        made[name] = user
    yield made
    LogEntry.objects.all().delete()
    Session.objects.all().delete()
    User.objects.filter(username__in=[*RIGHTS, *FAMILY]).delete()


@pytest.fixture(autouse=True)
def long_timeout(monkeypatch):
    """Pages wait for backends as long as a busy machine may take, and remember no answer."""
    monkeypatch.setattr(fan_out, "TIMEOUT", 30.0)
    monkeypatch.setattr(views, "HEALTH_SECONDS", 0.0)


@pytest.fixture
def usual_timeout(monkeypatch):
    """``usual_timeout()``: from now on pages wait for backends only as long as they usually do."""
    return lambda: monkeypatch.setattr(fan_out, "TIMEOUT", USUAL_TIMEOUT)


@pytest.fixture
def in_time(operator, usual_timeout):
    """``in_time(address, query)``: a page for which all backends have answered in the usual time.

    One page alone may be waited for in vain because the machine stands still.
    """

    def get(address, query=None):
        def answered():
            page = operator.get(address, {**(query or {}), "retry": "1"})
            seen = page.context["overview"]
            unread = any("cannot be read" in card.note for card in seen.noted)
            return not seen.silent and not unread and page

        usual_timeout()
        return eventually(answered)

    return get


@pytest.fixture
def site(settings):
    """The site accepts the address of the test client."""
    settings.ALLOWED_HOSTS = ["*"]


@pytest.fixture
def client_of(users, site):
    """``client_of("viewer")``: a client that this user is signed in with."""

    def sign_in(name, **options):
        client = Client(**options)
        client.force_login(users[name])
        return client

    return sign_in


@pytest.fixture
def operator(client_of):
    """Someone who may do everything."""
    return client_of("operator")


@pytest.fixture
def use_language(settings):
    """``use_language(client, "de")``: let the site use this language for a client."""

    def use(client, language):
        settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.middleware.locale.LocaleMiddleware"]
        client.cookies[settings.LANGUAGE_COOKIE_NAME] = language

    yield use
    translation.deactivate()  # the last request has left it so


@pytest.fixture
def expired():
    """``expired("a")``: let a lease run out without a release."""

    def take(name, using="default"):
        taken = False
        while not taken:
            with suppress(LockUnavailable):  # its lease had ended before it was known to be taken
                taken = Lock(name, using=using, lease=0.01, renew=False).acquire()
        eventually(lambda: locks[using].inspect(name).state is State.EXPIRED)
        return locks[using].inspect(name)

    return take


@pytest.fixture
def holder(child):
    """``holder("a", using=…)``: a process that holds these locks; ``tokens`` are theirs."""

    def start(*names, using="default", **options):
        process = child(holders.hold, using, names, options)
        process.tokens = [int(token) for token in process.line().split()]
        return process

    return start


URLS = SimpleNamespace(
    list="admin:distlock_heldlock_changelist",
    lock="admin:distlock_heldlock_lock",
    release="admin:distlock_heldlock_release",
    sweep="admin:distlock_heldlock_sweep",
)


@pytest.fixture
def url():
    """``url("list")``: the address of a page."""
    return lambda page: reverse(getattr(URLS, page))
