"""The pages of the coordination family in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from distlock.conf import locks
from distlock.recipes import Group
from distlock.recipes.config import Config
from tests.admin.browser.looks import LOOKS

pytestmark = pytest.mark.slow


@pytest.fixture
def family(backend_settings, settings, users):
    """Something of each kind, in two backends."""
    settings.DISTLOCK = {**backend_settings("local"), **backend_settings("local", alias="other")}
    mailer = Config("mailer")
    mailer.set({"host": "mx1", "port": 25, "retries": 3}, author="ada", comment="first")
    mailer.set({"host": "mx2", "port": 25, "retries": 3}, author="bob", comment="mx1 is down")
    Config("limits", using="other").set(120, author="ada", comment="")
    groups = [
        Group("workers", "worker-1", data={"queues": ["mail", "pdf"], "version": "2.4.1"}),
        Group("workers", "worker-2"),
        Group("web"),
    ]
    for group in groups:
        group.join()
    yield
    for group in groups:
        group.leave()
    locks.close_all()


@pytest.mark.parametrize("look", LOOKS)
def test_configuration(visit, family, look):
    visitor = visit("coordinator", look)
    page = visitor.page
    page.goto("/admin/distlock/config/")
    visitor.sees("limits", "mailer")
    visitor.check(f"config-list-{look}")
    page.get_by_role("link", name="mailer").click()
    expect(page.get_by_role("heading", name="mailer")).to_be_visible()
    visitor.check(f"config-one-{look}")
    page.get_by_role("button", name="Edit").click()
    page.get_by_label("Value").fill('{"host": "mx3", "port": 25}')
    page.get_by_label("Comment").fill("moved")
    page.get_by_role("button", name="Compare").click()
    visitor.check(f"config-edit-{look}")
    page.get_by_role("button", name="Set this value").click()
    expect(page.locator(".dl-block").first).to_contain_text("mx3")
    visitor.check(f"config-done-{look}")


@pytest.mark.parametrize("look", LOOKS)
def test_groups(visit, family, look):
    visitor = visit("coordinator", look)
    page = visitor.page
    page.goto("/admin/distlock/group/")
    visitor.sees("web", "workers")
    visitor.check(f"group-list-{look}")
    page.get_by_role("link", name="workers").click()
    visitor.check(f"group-one-{look}")
    page.locator("tr", has_text="worker-2").get_by_role("button").click()
    visitor.check(f"group-remove-{look}")
    page.get_by_label("Reason").fill("it hangs")
    page.get_by_role("button", name="Remove this member").click()
    visitor.sees("worker-1")
    expect(page.locator(".dl-log")).to_contain_text("it hangs")
    visitor.check(f"group-done-{look}")
