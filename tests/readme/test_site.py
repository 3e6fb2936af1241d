"""`make docs` builds the site of the pages; a browser opens, searches and reads it offline."""

from __future__ import annotations

import functools
import http.server
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect

from tests.admin.browsing import DESKTOP, PHONE, TIMEOUT_SECONDS, chromium
from tests.readme.pages import ROOT

# Making an environment and building takes minutes on a busy machine, less than a run may take.
pytestmark = [pytest.mark.slow, pytest.mark.once, pytest.mark.timeout(390)]

PYTHON = ROOT / ".envs" / "docs" / "bin" / "python"


def build(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    """Build as `make docs` does."""
    options = ["-q", "-W", "--keep-going", "-d", f"{target}-doctrees"]
    command = [PYTHON, "-m", "sphinx", *options, source, target]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site, which was built without a warning."""
    subprocess.run(["make", "--silent", ".envs/docs/.ready"], cwd=ROOT, check=True)
    folder = tmp_path_factory.mktemp("site") / "html"
    built = build(ROOT / "docs", folder)
    assert (built.returncode, built.stderr) == (0, "")
    return folder


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    handler = functools.partial(Quiet, directory=site)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join(30)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def visit(browser: Browser, address: str) -> Iterator[object]:
    """Open a page of the site; at the end nothing may have gone wrong or to another host."""
    contexts = []
    complaints: list[str] = []
    requests: list[str] = []

    def complain(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            complaints.append(message.text)

    def open_page(name: str, **options: object) -> Page:
        context = browser.new_context(**{"viewport": DESKTOP, **options})
        context.set_default_timeout(TIMEOUT_SECONDS * 1000)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", complain)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(address + name)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
    assert [url for url in requests if not url.startswith((address, "data:"))] == []


@pytest.mark.parametrize("word", ["PgBouncer", "acquire", "uWSGI"])
def test_the_search_finds(visit, word):
    page = visit("index.html")
    page.get_by_role("textbox", name="Search").fill(word)
    page.keyboard.press("Enter")
    expect(page.get_by_text(re.compile(r"found \d+ pages? matching"))).to_be_visible()
    expect(page.locator("#search-results li").first).to_contain_text(word)


@pytest.mark.parametrize(
    "words, title",
    [
        ("who waits", "Who holds it, and who waits?"),
        ("break lock", "May I break this lock?"),
        ("acquire return False", "Why did acquire() return False?"),
    ],
)
def test_the_search_leads_to_the_section_for_users(visit, words, title):
    page = visit(f"search.html?q={words}")
    expect(page.get_by_text(re.compile(r"found \d+ pages matching"))).to_be_visible()
    hits = page.locator("#search-results li > a")
    expect(hits.first).to_contain_text(f" > {title}")
    places = [place.partition("#")[0] for place in hits.evaluate_all(HREFS)]
    for_maintainers = {"architecture.html", "changelog.html", "contributing.html"}
    of_users = [place for place in places if place not in for_maintainers]
    assert places[: len(of_users)] == of_users
    assert len(of_users) > 5
    hits.first.click()
    expect(page.get_by_role("heading", name=title)).to_be_in_viewport()


HREFS = "all => all.map(one => one.getAttribute('href').split('/').pop())"


def test_the_list_of_pages_shows_the_current_one(visit):
    page = visit("contributing.html")
    expect(page.locator(".sidebar-tree .current-page")).to_be_in_viewport()


# One has too many participants to fit.
@pytest.mark.parametrize("size, most", [(DESKTOP, 1), (PHONE, 10)])
def test_diagrams_are_readable_and_show_where_they_scroll(visit, size, most):
    page = visit("architecture.html", viewport=size)
    boxes = page.locator(".diagram").evaluate_all(
        """all => all.map(box => {
          const svg = box.querySelector("svg");
          const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
          return {size: 13 * scale, scrolls: box.scrollWidth > box.clientWidth,
                  marked: box.matches(".more-left, .more-right")};
        })"""
    )
    assert min(box["size"] for box in boxes) > 10.9
    assert 1 <= sum(box["scrolls"] for box in boxes) <= most
    assert [box["marked"] for box in boxes] == [box["scrolls"] for box in boxes]
    layer = page.locator(".diagram").first.get_by_text("runtime/")
    assert layer.evaluate(
        """one => {
          const [inner, outer] = [one, one.closest(".diagram")].map(e => e.getBoundingClientRect());
          return outer.left <= inner.left && inner.right <= outer.right;
        }"""
    )


def test_dark_can_be_chosen(visit):
    page = visit("architecture.html", color_scheme="light")
    assert brightness(page, "body", "backgroundColor") > 240
    assert brightness(page, ".diagram .actor-top", "fill") > 240
    assert brightness(page, ".diagram .messageText", "fill") < 50
    page.locator("button.theme-toggle:visible").click()
    assert brightness(page, "body", "backgroundColor") < 50
    assert brightness(page, ".diagram .actor-top", "fill") < 50
    assert brightness(page, ".diagram .messageText", "fill") > 180


def brightness(page: Page, selector: str, style: str) -> float:
    """Return how bright a color is, from 0 to 255."""
    color = page.locator(selector).first.evaluate(f"one => getComputedStyle(one).{style}")
    return sum(map(int, re.findall(r"\d+", color)[:3])) / 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures_of_the_admin_fit_the_theme(visit, scheme):
    page = visit("admin.html", color_scheme=scheme)
    shown = page.locator("article img:visible").evaluate_all("all => all.map(one => one.src)")
    assert len(shown) >= 4
    assert all(source.endswith(f"-{scheme}.png") for source in shown)


def test_every_page_fits_a_phone(visit, site, address):
    page = visit("index.html", viewport=PHONE)
    wide = {}
    for path in sorted(site.rglob("*.html")):
        page.goto(address + path.relative_to(site).as_posix())
        wide[path.name] = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    assert len(wide) > 15
    assert {name: pixels for name, pixels in wide.items() if pixels > 0} == {}


def test_diagrams_are_drawn(site):
    blocks = (ROOT / "docs/architecture.md").read_text().count("```mermaid\n")
    page = (site / "architecture.html").read_text()
    assert page.count('<div class="diagram"') == blocks > 5
    for used in set(re.findall(r"url\(#([^)]+)\)", page)):
        assert page.count(f' id="{used}"') <= 1, used  # else one gets the arrows of another


def test_a_list_of_pages_for_language_models_is_made(site):
    listed = (site / "llms.txt").read_text()
    for path in (ROOT / "docs").rglob("*.md"):
        page = path.relative_to(ROOT / "docs").as_posix()
        assert re.search(rf"^- \[.+\]\({re.escape(page)}\): .+", listed, re.MULTILINE), page
        assert (site / page).exists()
    assert "# Architecture" in (site / "llms-full.txt").read_text()


MISSING = {
    "[x](other.md#no-such-title)": "no-such-title",
    "[x](no-such-page.md)": "no-such-page.md",
    "[x](#no-title-of-this-page)": "no-title-of-this-page",
    "[x](../NO-SUCH-FILE.md)": "NO-SUCH-FILE.md",
    "[x](../CONTRIBUTING.md#not-among-its-titles)": "not-among-its-titles",
    "![x](no-such-picture.png)": "no-such-picture.png",
    "```mermaid\nsequenceDiagram\n  A->>B: one; two\n```": "Parse error on line 2",
    "```mermaid\nstateDiagram-v2\n  a --> b: one; two\n```": "a --> b: one; two",
    "<<<<<<< HEAD": "A merge is not finished: <<<<<<< HEAD",
    "```text\n>>>>>>> other\n```": "A merge is not finished: >>>>>>> other",
    "# Again": "this is its second: Again",
}


#: A fault in a page outside of docs/.
INCLUDED = "<<<<<<< ours"
INCLUDED_SAYS = f"A merge is not finished: {INCLUDED}"


def test_what_is_missing_fails_the_build(site, tmp_path):
    """The control: a project of three pages, two of which have these faults and no others."""
    docs = tmp_path / "docs"
    for folder in ("_ext", "_static"):
        shutil.copytree(ROOT / "docs" / folder, docs / folder)
    for file in ("docs/conf.py", "docs/contributing.md", "pyproject.toml"):
        shutil.copy(ROOT / file, tmp_path / file)
    (tmp_path / "CONTRIBUTING.md").write_text("# Contributing\n\n## How\n")
    (docs / "other.md").write_text("# Other\n\n## A title\n")
    fine = [
        "[x](other.md#a-title)",
        "[x](../CONTRIBUTING.md#how)",
        "[x](../pyproject.toml)",
        "```{toctree}\nother\ncontributing\n```",
    ]
    (docs / "index.md").write_text("\n\n".join(["# Index", *fine]))
    assert build(docs, tmp_path / "fine").stderr == ""
    (docs / "index.md").write_text("\n\n".join(["# Index", *fine, *MISSING]))
    contributing = tmp_path / "CONTRIBUTING.md"
    contributing.write_text(f"{contributing.read_text()}\n{INCLUDED}\n")
    built = build(docs, tmp_path / "missing")
    assert built.returncode == 1
    warnings = [line for line in built.stderr.splitlines() if "WARNING" in line]
    for warning in (*MISSING.values(), f"CONTRIBUTING.md:5: WARNING: {INCLUDED_SAYS}"):
        assert any(warning in line for line in warnings), warning
    # Mermaid's parse error has a second warning for the ; and shows the text of the block, which no
    # highlighting is known for.
    assert len(warnings) == len(MISSING) + 3, built.stderr
