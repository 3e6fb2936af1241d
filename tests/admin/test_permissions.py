"""Who may see and do what: every address, every method, every kind of user."""

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import NoReverseMatch, get_resolver, reverse

from distlock.admin.locks import HoldRef
from distlock.models import DatabaseLock
from distlock.types.lease import State
from tests.admin.conftest import RIGHTS

SAFE = ["GET", "HEAD"]
METHODS = [*SAFE, "OPTIONS", "POST", "PUT", "PATCH", "DELETE"]
PAGES = {"list": set(SAFE), "lock": set(SAFE), "release": {"POST"}, "sweep": {"POST"}}
NEEDS = {
    "list": {"view_databaselock"},
    "lock": {"view_databaselock"},
    "release": {"view_databaselock", "force_release_lock"},
    "sweep": {"view_databaselock", "sweep_locks"},
}


@pytest.fixture
def held(local, taken, expired):
    """A lock that is held, beside one that has expired."""
    taken("held")
    expired("expired")
    return local.inspect("held")


def forms(held):
    return {
        "release": {"hold": [str(HoldRef.of(held))], "confirmed": "yes", "reason": "a test"},
        "sweep": {"confirmed": "yes"},
    }


def expected(user, page, method):
    rights = RIGHTS[user]
    if rights is None:
        return 302
    if not NEEDS[page] <= set(rights):
        return 403
    if method not in PAGES[page]:
        return 405
    return 302 if page in ("release", "sweep") else 200


def unchanged(local, logged):
    return (
        local.inspect("held").state is State.HELD
        and local.inspect("expired").state is State.EXPIRED
        and LogEntry.objects.count() == logged
    )


@pytest.mark.parametrize("user", RIGHTS)
@pytest.mark.parametrize("page", PAGES)
def test_every_address_with_every_method(client_of, url, held, local, user, page):
    client, logged = client_of(user), LogEntry.objects.count()
    address = url(page) + ("?backend=default&name=held" if page == "lock" else "")
    for method in METHODS:
        if method != "POST":
            response = client.generic(method, address)
            assert response.status_code == expected(user, page, method), method
            assert unchanged(local, logged), method
    response = client.post(address, forms(held).get(page, {}))
    assert response.status_code == expected(user, page, "POST")
    if response.status_code != 302 or RIGHTS[user] is None:
        assert unchanged(local, logged)
        return
    released, swept = (local.inspect(name).state is State.FREE for name in ("held", "expired"))
    assert (released, swept) == (page == "release", page == "sweep")


def test_these_are_all_addresses_of_the_panel():
    """A new page has to be added to the tests above."""
    names = {
        name
        for name in get_resolver().namespace_dict["admin"][1].reverse_dict
        if isinstance(name, str) and name.startswith("distlock_heldlock")
    }
    assert names == {
        f"distlock_heldlock_{page}" for page in ("changelist", "lock", "change", "release", "sweep")
    }


@pytest.mark.parametrize("page", PAGES)
def test_whoever_is_not_signed_in_is_sent_to_sign_in(site, url, local, page):
    response = Client().post(url(page))
    assert response.status_code == 302
    assert response.headers["Location"].startswith(reverse("admin:login"))


@pytest.mark.parametrize("page", ["release", "sweep"])
def test_a_form_from_elsewhere_does_nothing(client_of, url, held, local, page):
    client = client_of("operator", enforce_csrf_checks=True)
    assert client.post(url(page), forms(held)[page]).status_code == 403
    assert local.inspect("held").state is State.HELD
    assert local.inspect("expired").state is State.EXPIRED


@pytest.mark.parametrize("page", ["list", "lock", "release", "sweep"])
@pytest.mark.parametrize("method", ["get", "head"])
def test_looking_changes_nothing_whatever_is_asked(operator, url, held, local, page, method):
    """Everything that a form would send, in the address."""
    data = {
        "backend": "default",
        "name": "held",
        "action": "release",
        **forms(held)["release"],
    }
    logged = LogEntry.objects.count()
    getattr(operator, method)(url(page), data)
    assert local.inspect("held").token == held.token
    assert local.inspect("expired").state is State.EXPIRED
    assert LogEntry.objects.count() == logged


@pytest.mark.parametrize(
    ("user", "release", "sweep"),
    [
        ("viewer", False, False),
        ("breaker", True, False),
        ("sweeper", False, True),
        ("operator", True, True),
    ],
)
def test_what_one_may_not_do_is_not_offered(client_of, url, held, user, release, sweep):
    client = client_of(user)
    page = client.get(url("list")).content.decode()
    assert (url("release") in page) == release
    assert ('name="hold"' in page) == release
    assert (url("sweep") in page) == sweep
    page = client.get(url("lock"), {"backend": "default", "name": "held"}).content.decode()
    assert (url("release") in page) == release


@pytest.mark.parametrize("user", ["viewer", "operator", "breaker"])
def test_the_index_leads_to_the_panel_only_those_who_may_see_it(client_of, url, user):
    assert url("list") in client_of(user).get(reverse("admin:index")).content.decode()


@pytest.mark.parametrize("user", ["staff", "blind"])
def test_the_index_does_not_mention_it_to_others(client_of, url, user):
    assert url("list") not in client_of(user).get(reverse("admin:index")).content.decode()


# The row


@pytest.fixture
def row(sqlite, backend_settings, settings, taken):
    settings.DISTLOCK = backend_settings("sqlite")
    taken("in the table")
    return DatabaseLock.objects.get(lock="in the table")


@pytest.mark.parametrize("user", [user for user in RIGHTS if RIGHTS[user]])
def test_the_row_can_be_read_with_the_permission_to_see_locks(client_of, url, row, user):
    page = client_of(user).get(url("lock"), {"backend": "default", "name": row.lock})
    may = "view_databaselock" in RIGHTS[user]
    assert page.status_code == (200 if may else 403)
    assert (row.nonce in page.content.decode()) is may


@pytest.mark.parametrize("user", [user for user in RIGHTS if RIGHTS[user]])
def test_the_addresses_of_the_log_are_for_those_who_may_see_locks(client_of, user, local):
    address = reverse("admin:distlock_heldlock_change", args=["default_3Aa"])
    may = "view_databaselock" in RIGHTS[user]
    assert client_of(user).get(address).status_code == (302 if may else 403)


@pytest.mark.parametrize(
    ("page", "arguments"), [("changelist", []), ("add", []), ("change", [1]), ("delete", [1])]
)
def test_no_page_of_the_admin_writes_the_table(page, arguments):
    """The table itself has no pages, which would have to ask a database that may not answer."""
    with pytest.raises(NoReverseMatch):
        reverse(f"admin:distlock_databaselock_{page}", args=arguments)
