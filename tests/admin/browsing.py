"""A real browser at a real server, and what it looks at."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from django.test import Client
from playwright.sync_api import Browser, Page, expect, sync_playwright

from locksite.demo.server import HOST, site_server
from tests.servers.debian import program
from tests.servers.process import START_LIMIT

#: Seconds that anything on a page may take.
TIMEOUT_SECONDS = 60
expect.set_options(timeout=TIMEOUT_SECONDS * 1000)

#: Where screenshots of a run are kept.
SHOTS = Path(__file__).parents[2] / "test-results" / "admin"

_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

DESKTOP = {"width": 1360, "height": 900}
PHONE = {"width": 390, "height": 844}

#: Nothing but files of the site itself may be run or styled with.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


#: Refreshes pages more often than people need it; this runs before the page's own script.
_FAST_REFRESH = """
document.addEventListener("readystatechange", () => {
  document.getElementById("dl-live")?.setAttribute("data-seconds", "0.3");
});
"""


def policy_middleware(get_response):
    """Send the strict policy with every page."""

    def middleware(request):
        response = get_response(request)
        response.headers["Content-Security-Policy"] = POLICY
        return response

    return middleware


@contextmanager
def served() -> Iterator[str]:
    """Serve the site of this process; yields its address."""
    server = site_server(0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(30)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start Debian's Chromium."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program("chromium"), args=_FLAGS, timeout=START_LIMIT * 1000
        )
        try:
            yield browser
        finally:
            browser.close()


class Visitor:
    """Someone in front of a browser, signed in as a user; complaints of the browser are kept."""

    def __init__(self, browser: Browser, address: str, user, **options) -> None:
        options = {"viewport": DESKTOP, "color_scheme": "light", **options}
        self.context = browser.new_context(base_url=address, **options)
        self.context.set_default_timeout(TIMEOUT_SECONDS * 1000)
        self.context.add_init_script(_FAST_REFRESH)
        self.context.route("**/favicon.ico", lambda route: route.fulfill(status=204))
        client = Client()
        client.force_login(user)
        session = client.cookies["sessionid"].value
        self.context.add_cookies([{"name": "sessionid", "value": session, "url": address}])
        self.complaints: list[str] = []
        self.page: Page = self.context.new_page()
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", self._on_dialog)

    def _on_console(self, message) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def _on_dialog(self, dialog) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def list(self, query: str = "") -> Page:
        """Open the list of held locks."""
        self.page.goto(f"/admin/distlock/heldlock/{query}")
        return self.page

    def names(self) -> list[str]:
        """Return the locks on the page, in order."""
        return self.page.locator(".dl-table tbody .dl-name > :first-child").all_inner_texts()

    def sees(self, *names: str) -> None:
        """Wait until exactly these locks are on the page."""
        expect(self.page.locator(".dl-table tbody .dl-name > :first-child")).to_have_text(names)

    def shoot(self, name: str) -> None:
        """Keep a picture of the whole page."""
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SHOTS / f"{name}.png", full_page=True)

    def check(self, name: str) -> None:
        """Keep a picture; the page must be accessible, and fit the width of the screen."""
        self.shoot(name)
        violations = Axe().run(self.page).response["violations"]
        found = [
            f"{violation['id']}: {violation['help']}\n  {node['html'][:300]}\n  "
            + re.sub(r"\s+", " ", node["failureSummary"])
            for violation in violations
            for node in violation["nodes"]
        ]
        assert not found, "\n".join(found)
        wide = self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0, f"{wide} pixels too wide"

    def leave(self) -> None:
        """Forget what the browser keeps for the site, but stay signed in."""
        if self.page.url.startswith("http"):
            self.page.evaluate("localStorage.clear()")

    def close(self) -> None:
        self.context.close()
