"""The panel in an admin site of one's own, at any address."""

import re
import subprocess
import sys

import pytest
from django.test import Client

from distlock.admin.locks import HoldRef


@pytest.fixture
def ops(operator, local, taken, settings):
    settings.ROOT_URLCONF = "tests.admin.urls"
    taken("a")
    return operator


def links(page):
    return re.findall(r'(?:href|action)="(/[^"]*)"', page.content.decode())


def test_every_link_stays_in_that_site(ops, local):
    ref = str(HoldRef.of(local.inspect("a")))
    pages = [
        ops.get("/ops/"),
        ops.get("/ops/distlock/"),
        ops.get("/ops/distlock/heldlock/"),
        ops.get("/ops/distlock/heldlock/lock/", {"backend": "default", "name": "a"}),
        ops.post("/ops/distlock/heldlock/release/", {"hold": [ref]}),
        ops.post("/ops/distlock/heldlock/sweep/"),
    ]
    for page in pages:
        assert page.status_code == 200
        assert "/ops/distlock/heldlock/" in links(page)
        elsewhere = [each for each in links(page) if not each.startswith(("/ops/", "/static/"))]
        assert set(elsewhere) <= {"/"}  # the site's own front page


def test_what_was_done_comes_back_to_that_site(ops, local):
    ref = str(HoldRef.of(local.inspect("a")))
    form = {"hold": [ref], "confirmed": "yes", "reason": "a test"}
    response = ops.post("/ops/distlock/heldlock/release/", form)
    assert response.headers["Location"].startswith("/ops/distlock/heldlock/")
    response = ops.post("/ops/distlock/heldlock/sweep/", {"confirmed": "yes"})
    assert response.headers["Location"] == "/ops/distlock/heldlock/"


def test_own_visitors_sign_in_there(site, settings, local):
    settings.ROOT_URLCONF = "tests.admin.urls"
    response = Client().get("/ops/distlock/heldlock/")
    assert response.headers["Location"] == "/ops/login/?next=/ops/distlock/heldlock/"


#: A project with distlock that draws a template.
WITHOUT_ADMIN = """
import django
from django.conf import settings

settings.configure(
    INSTALLED_APPS=["distlock"],
    TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates"}],
)
django.setup()
from django.template import engines

print(engines["django"].from_string("drawn").render())
"""


@pytest.mark.once
def test_a_project_without_the_admin_draws_its_templates():
    program = [sys.executable, "-c", WITHOUT_ADMIN]
    assert subprocess.check_output(program, text=True, timeout=60) == "drawn\n"
