"""Names, descriptions, owners, reasons are anybody's words: they harm no page and no log."""

import logging
from html.parser import HTMLParser

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse

from distlock.admin.locks import HoldRef
from distlock.conf import locks
from distlock.models import DatabaseLock
from distlock.types.values import MAX_DESCRIPTION, MAX_NAME

HOSTILE = {
    "html": '</td><script>alert(1)</script>"><img src=x onerror=alert(1)>',
    "attribute": "\" autofocus onfocus=alert(1) x=\"' onmouseover='alert(1)",
    "template": "{{ settings.SECRET_KEY }}{% debug %}",
    "bidi": "invoice\u202e\u2066gnp.exe\u2069\u200f",
    "lines": "a\r\nWARNING distlock root released everything\u2028b\x85c",
    "terminal": "\x1b[2J\x1b]0;owned\x07\x9b31m",
    "invisible": "a\u200bb\u00adc\ufeffd",
    "long": "x" * MAX_NAME,
    "wide": "🔑" * MAX_NAME,
    "percent": "100% %s %(name)s %d {0} {}",
    "json": '[{"changed": {"name": "x"}}]',
}


@pytest.fixture(params=HOSTILE)
def hostile(request, sqlite, backend_settings, settings):
    """A row whose every text is hostile, as only someone with access to the table can write it."""
    settings.DISTLOCK = backend_settings("sqlite")
    words = HOSTILE[request.param]
    row = DatabaseLock.objects.create(
        lock=words,
        description=(words * 2)[:MAX_DESCRIPTION],
        owner="@" + words[:200],
        nonce="n",
        host=words[:255],
        process=7,
        thread=words[:255],
        token=1,
        acquired_at="2026-01-01T00:00:00Z",
        expires_at="2100-01-01T00:00:00Z",
    )
    yield row
    DatabaseLock.objects.all().delete()
    locks.close_all()


class Reader(HTMLParser):
    """Reads a page as a browser does: tags, attributes, and what people see."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.seen = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.attributes += attributes
        self.seen += [value for name, value in attributes if name in ("title", "aria-label", "alt")]

    def handle_data(self, data):
        self.seen.append(data)


def assert_harmless(page):
    """Nothing of what it shows has become markup, and nothing in it is hidden."""
    assert page.status_code == 200
    read = Reader(page.content.decode())
    assert not [name for name, _ in read.attributes if name.startswith("on") or name == "style"]
    assert not [tag for tag, given in read.tags if tag == "script" and not given.get("src")]
    images = [given["src"] for tag, given in read.tags if tag == "img"]
    assert all(source.startswith("/static/admin/") for source in images)
    for text in read.seen:
        assert text.replace("\n", "").replace("\xa0", "").isprintable(), text


def test_every_page_shows_it_and_is_not_harmed(operator, url, hostile):
    info = locks["default"].inspect(hostile.lock)
    assert_harmless(operator.get(url("list")))
    page = operator.get(url("lock"), {"backend": "default", "name": hostile.lock})
    assert_harmless(page)
    assert page.context["info"].token == 1
    assert_harmless(operator.post(url("release"), {"hold": [str(HoldRef.of(info))]}))


def test_it_is_released_and_the_logs_are_not_harmed(operator, url, hostile, caplog):
    info = locks["default"].inspect(hostile.lock)
    with caplog.at_level(logging.WARNING, "distlock"):
        response = operator.post(
            url("release"),
            {
                "hold": [str(HoldRef.of(info))],
                "confirmed": "yes",
                "reason": f"because {hostile.lock}".replace("\0", "")[:500],
            },
            follow=True,
        )
    assert_harmless(response)
    assert "1 lock was released" in response.content.decode()
    entry = LogEntry.objects.first()
    assert len(entry.object_repr) <= 200
    assert entry.object_repr.isprintable()
    assert entry.change_message.isprintable()
    assert entry.get_change_message() == entry.change_message
    for line in caplog.messages:
        assert line.isprintable()
    assert_harmless(operator.get(reverse("admin:index")))
