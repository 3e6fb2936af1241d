"""The pages of the coordination family: who may see and do what, and that tokens are compared."""

import time
from dataclasses import replace

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import get_resolver, reverse

from distlock import fan_out
from distlock.conf import locks
from distlock.recipes import Config, Event, Group, Progress, Queue
from distlock.registry import ENTRIES
from tests.admin.conftest import COORDINATION
from tests.admin.family import ACTIONS, NAME, SCENES

pytestmark = pytest.mark.once

SAFE = ["GET", "HEAD"]
METHODS = [*SAFE, "OPTIONS", "POST", "PUT", "PATCH", "DELETE"]


@pytest.fixture
def scene(kind, local):
    made = SCENES[kind]()
    yield made
    made.close()


@pytest.fixture
def client_with(users, site):
    """``client_with("view_group", …)``: someone of the staff who has these permissions."""
    made = []

    def sign_in(*permissions, **options):
        user = User.objects.create_user(f"someone{len(made)}", is_staff=True)
        made.append(user)
        for codename in permissions:
            user.user_permissions.add(
                Permission.objects.get(content_type__app_label="distlock", codename=codename)
            )
        client = Client(**options)
        client.force_login(user)
        return client

    yield sign_in
    LogEntry.objects.all().delete()
    for user in made:
        user.delete()


def address(kind, page):
    return reverse(f"admin:distlock_{kind}_{page}")


def one(kind, name=NAME, using="default"):
    return address(kind, "one"), {"backend": using, "name": name}


each_kind = pytest.mark.parametrize("kind", SCENES)
each_action = pytest.mark.parametrize(("kind", "action"), ACTIONS)


# Who may see it


@each_kind
def test_seeing_takes_a_permission_of_its_own(kind, scene, client_with):
    others = [right for name in COORDINATION if name != kind for right in COORDINATION[name]]
    stranger = client_with(*others, "view_databaselock", "force_release_lock", "sweep_locks")
    viewer = client_with(f"view_{kind}")
    for url, data in [(address(kind, "changelist"), {}), one(kind)]:
        assert viewer.get(url, data).status_code == 200
        assert stranger.get(url, data).status_code == 403
        assert viewer.post(url, data).status_code == 405
    index = reverse("admin:index")
    assert address(kind, "changelist") in viewer.get(index).content.decode()
    assert address(kind, "changelist") not in stranger.get(index).content.decode()


@each_kind
def test_the_name_is_listed_and_has_a_page(kind, scene, client_with):
    viewer = client_with(f"view_{kind}")
    assert NAME in viewer.get(address(kind, "changelist")).content.decode()
    assert NAME in viewer.get(*one(kind)).content.decode()


@pytest.mark.parametrize("kind", ["config"])
@pytest.mark.parametrize("name", ["", " ", "a\0", "x" * 600])
def test_what_can_be_no_name_is_not_found(kind, local, client_with, name):
    assert client_with(f"view_{kind}").get(*one(kind, name)).status_code == 404


@each_kind
def test_a_name_that_nobody_uses_has_an_empty_page(kind, local, client_with):
    assert client_with(f"view_{kind}").get(*one(kind, "nobody")).status_code == 200


def test_work_that_nobody_reports_has_a_page_that_says_so(local, client_with):
    page = client_with("view_progress").get(*one("progress", "nobody")).content.decode()
    assert "Nobody reports." in page
    assert "Cannot be asked" not in page


@pytest.mark.parametrize("kind", ["config"])
def test_an_alias_that_there_is_not_is_not_found(kind, local, client_with):
    assert client_with(f"view_{kind}").get(*one(kind, using="x")).status_code == 404


@each_kind
def test_whoever_is_not_signed_in_is_sent_to_sign_in(kind, site, local):
    response = Client().get(address(kind, "changelist"))
    assert response.status_code == 302
    assert response.headers["Location"].startswith(reverse("admin:login"))


# What may be done


def test_these_are_all_addresses():
    """A new page has to be added to the tests here."""
    names = {
        name
        for name in get_resolver().namespace_dict["admin"][1].reverse_dict
        if isinstance(name, str) and name.startswith("distlock_") and "heldlock" not in name
    }
    pages = {
        f"distlock_{kind}_{page}" for kind in SCENES for page in ("changelist", "one", "change")
    }
    assert names == pages | {f"distlock_{kind}_{action}" for kind, action in ACTIONS}
    assert {entry.model.lower() for entry in ENTRIES} == set(SCENES)
    assert {right for rights in COORDINATION.values() for right in rights} == {
        *(f"view_{kind}" for kind in SCENES),
        *ACTIONS.values(),
    }


@each_action
def test_each_action_takes_a_permission_of_its_own(kind, action, scene, client_with):
    url, before = address(kind, action), scene.state()
    others = [right for rights in COORDINATION.values() for right in rights]
    others.remove(ACTIONS[kind, action])
    assert client_with(*others).post(url, scene.form(action)).status_code == 403
    assert client_with(ACTIONS[kind, action]).post(url, scene.form(action)).status_code == 403
    assert scene.state() == before


@each_action
def test_nothing_is_done_but_by_a_post(kind, action, scene, client_with):
    client = client_with(*COORDINATION[kind])
    before, logged = scene.state(), LogEntry.objects.count()
    for method in METHODS:
        if method != "POST":
            response = client.generic(
                method, address(kind, action), query_params=scene.form(action)
            )
            assert response.status_code == 405, method
    client.get(address(kind, "changelist"), scene.form(action))
    client.get(one(kind)[0], {**one(kind)[1], **scene.form(action)})
    assert (scene.state(), LogEntry.objects.count()) == (before, logged)


@each_action
def test_nothing_is_done_without_a_confirmation(kind, action, scene, client_with):
    before, client = scene.state(), client_with(*COORDINATION[kind])
    filled_in = scene.form(action, preview="yes")
    del filled_in["confirmed"]
    for data in ({"ref": str(scene.refs[action])}, filled_in):
        response = client.post(address(kind, action), data)
        assert response.status_code == 200
        assert NAME in response.content.decode()
        assert scene.state() == before


@each_action
def test_nothing_is_done_without_a_reason(kind, action, scene, client_with):
    before = scene.state()
    client = client_with(*COORDINATION[kind])
    response = client.post(address(kind, action), scene.form(action, reason=" "))
    assert response.status_code == 200
    assert "Please say why." in response.content.decode()
    assert scene.state() == before


@each_action
def test_a_form_from_elsewhere_does_nothing(kind, action, scene, client_with):
    before = scene.state()
    client = client_with(*COORDINATION[kind], enforce_csrf_checks=True)
    assert client.post(address(kind, action), scene.form(action)).status_code == 403
    assert scene.state() == before


@each_action
def test_it_is_done_and_logged(kind, action, scene, client_with):
    before = scene.state()
    client = client_with(*COORDINATION[kind])
    response = client.post(address(kind, action), scene.form(action), follow=True)
    page = response.content.decode()
    assert response.redirect_chain
    assert scene.state() != before, page
    entry = LogEntry.objects.latest("action_time")
    assert "a test" in entry.change_message
    assert entry.get_admin_url() is not None
    assert client.get(entry.get_admin_url(), follow=True).status_code == 200
    assert "a test" in page


@each_action
def test_nothing_is_done_under_another_token(kind, action, scene, client_with):
    before, logged = scene.state(), LogEntry.objects.count()
    scene.refs[action] = replace(scene.refs[action], token=scene.refs[action].token - 1)
    client = client_with(*COORDINATION[kind])
    response = client.post(address(kind, action), scene.form(action), follow=True)
    assert "it has changed since it was shown" in response.content.decode()
    asked = client.post(address(kind, action), {"ref": str(scene.refs[action])})
    assert "Nothing will be done" in asked.content.decode()
    assert (scene.state(), LogEntry.objects.count()) == (before, logged)


@pytest.mark.parametrize(("kind", "action"), [("config", "edit")])
@pytest.mark.parametrize("ref", ["", "1", "[]", "{", "[" * 10_000, '["default","one",1,"\\ud800"]'])
def test_a_form_that_makes_no_sense_is_refused(kind, action, scene, client_with, ref):
    before = scene.state()
    client = client_with(*COORDINATION[kind])
    response = client.post(address(kind, action), {**scene.form(action), "ref": ref}, follow=True)
    assert "The form was not understood" in response.content.decode()
    assert scene.state() == before


@each_action
def test_what_one_may_not_do_is_not_offered(kind, action, scene, client_with):
    url, data = one(kind)
    data |= scene.pages.get(action, {})
    assert address(kind, action) in client_with(*COORDINATION[kind]).get(url, data).content.decode()
    viewer = client_with(f"view_{kind}")
    assert address(kind, action) not in viewer.get(url, data).content.decode()


# What is shown


def test_whatever_a_member_says_is_escaped(local, client_with):
    hostile, bidi = "<script>alert(1)</script>", "a\u202eb"
    client = client_with("view_group")
    with Group("<b>", hostile, data={bidi: hostile}):
        pages = [client.get(address("group", "changelist")), client.get(*one("group", "<b>"))]
    for page in (page.content.decode() for page in pages):
        assert "<script>alert" not in page
        assert "\u202e" not in page
        assert "&lt;b&gt;" in page


@pytest.mark.parametrize(
    ("language", "title", "state"), [("de", "Wahlen", "führt"), ("zh-hans", "选举", "领导中")]
)
@pytest.mark.parametrize("kind", ["election"])
def test_the_pages_speak_it(kind, scene, client_with, use_language, language, title, state):
    client = client_with(*COORDINATION[kind])
    use_language(client, language)
    assert f"<h1>{title}</h1>" in client.get(address(kind, "changelist")).content.decode()
    assert state in client.get(*one(kind)).content.decode()


def test_a_list_is_searched_and_cut_to_pages(local, client_with):
    client = client_with("view_event")
    for number in range(52):
        Event(f"ready:{number:02}").set()
    page = client.get(address("event", "changelist")).content.decode()
    assert "50 of 52 shown" in page
    assert "ready:51" not in page
    assert 'href="?page=2" rel="next"' in page
    page = client.get(address("event", "changelist"), {"page": "2"}).content.decode()
    assert 'href="?page=1" rel="prev"' in page
    assert "ready:51" in page
    assert "ready:00" not in page
    for number in ("0", "x", "²", "999"):
        answer = client.get(address("event", "changelist"), {"page": number})
        assert answer.status_code == 200
    page = client.get(address("event", "changelist"), {"q": "DY:07"}).content.decode()
    assert "1 of 1 shown" in page


# Backends


@pytest.mark.slow
def test_a_silent_backend_is_waited_for_once(
    proxied, backend_settings, settings, client_with, usual_timeout
):
    network = proxied("mariadb")
    settings.DISTLOCK = {
        **backend_settings("mariadb", OPTIONS={"timeout": 30}),
        "local": {"BACKEND": "distlock.backends.local.LocalBackend"},
    }
    client = client_with("view_event")
    Event("there").set()
    Event("here", using="local").set()
    assert "2 of 2 shown" in client.get(address("event", "changelist")).content.decode()
    usual_timeout()
    network.silence()
    try:
        client.get(address("event", "changelist"))

        def seconds():
            began = time.monotonic()
            page = client.get(address("event", "changelist")).content.decode()
            assert "Cannot be asked" in page
            return time.monotonic() - began

        assert min(seconds() for _ in range(3)) < fan_out.TIMEOUT
        page = client.get(address("event", "changelist")).content.decode()
        assert "name=here" in page
    finally:
        network.heal()
        locks.close_all()


@pytest.mark.parametrize("kind", ["config"])
def test_a_backend_that_cannot_be_asked_hides_no_other(
    kind, client_with, settings, backend_settings, request
):
    wrong = {"BACKEND": "nowhere.Backend"}
    settings.DISTLOCK = {**backend_settings("local"), "wrong": wrong}
    request.addfinalizer(SCENES[kind]().close)
    client = client_with(*COORDINATION[kind])
    page = client.get(address(kind, "changelist")).content.decode()
    assert "Cannot be asked" in page
    assert f"name={NAME}" in page
    page = client.get(*one(kind, using="wrong")).content.decode()
    assert "Cannot be asked" in page


def test_a_queue_whose_bound_is_no_number_hides_no_other(local, client_with):
    """Somebody has set it in ``Config``, past ``Queue.resize()``."""
    Queue("healthy").put("one")
    Queue("mistaken").put("one")
    Config("queue:mistaken").set("ten")
    client = client_with("view_queue", "view_error_text")
    listed = client.get(address("queue", "changelist")).content.decode()
    assert "maxsize must be a whole number" in listed
    assert "healthy" in listed
    page, query = one("queue", "mistaken")
    shown = client.get(page, query)
    assert shown.status_code == 200
    assert "maxsize must be a whole number" in shown.content.decode()


@pytest.mark.parametrize(("more", "seen"), [((), False), (("view_error_text",), True)])
def test_the_text_of_an_exception_has_a_permission_of_its_own(local, client_with, more, seen):
    with pytest.raises(ZeroDivisionError), Progress(NAME, total=3):
        raise ZeroDivisionError("password=secret")
    client = client_with("view_progress", "cancel_progress", *more)
    for page, query in ((address("progress", "changelist"), {}), one("progress")):
        text = client.get(page, query).content.decode()
        assert "Failed" in text
        assert ("password=secret" in text) is seen
