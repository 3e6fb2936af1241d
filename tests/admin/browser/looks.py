"""What is on the screen: locks with awkward names, in several looks."""

from __future__ import annotations

import re

import pytest

from tests.admin.browsing import PHONE
from tests.contract.watch import eventually

LONG = "long:" + "abcdefghi/" * 55 + "xyzzy"  # 560 characters
HOSTILE = '<script>alert("x")</script><img src=x onerror=alert(1)>'
BIDI = "order:\u202e24:redro\u2066"
LOOKS = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "phone": {"viewport": PHONE, "has_touch": True},
}
#: For pages that are tested on a phone only by the slow tests.
LOOKS_AND_SLOW_PHONE = ["light", "dark", pytest.param("phone", marks=pytest.mark.slow)]


def released_by(visitor, reason="the test says so"):
    """Fill in the reason on the page that asks, and confirm."""
    visitor.page.get_by_label("Reason").fill(reason)
    visitor.page.get_by_role("button", name=re.compile("^Break")).click()


def reload_until(shows, page):
    """Load a page again until ``shows()`` is true.

    Between two of its statements MariaDB does not show a waiter, and the page stays as it was.
    """

    def look():
        if shows():
            return True
        page.reload()
        return False

    eventually(look)
