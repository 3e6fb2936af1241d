"""A search in a queue finds the same wherever bodies are looked at: in the database, or here."""

import pytest

from distlock.conf import locks
from distlock.models import DatabaseRecord
from distlock.recipes import Queue
from tests.recipes.every_kind import pytest_generate_tests  # noqa: F401 - pytest calls it

BODIES = [
    {"to": "Ada", "subject": "Your Invoice"},
    "plain text: say \"ada\" \\ twice",
    "STRASSE", "Straße", "K\N{KELVIN SIGN}", "\N{LATIN SMALL LIGATURE FI}ne", "日本", "ÄDA",
    ["a", 1.5, None, True], 7, 12345, {"ada@example.org": "+49-30"}, "a_b", "a%b", "100%", "",
]  # fmt: skip
SEARCHES = [
    "ada", "ADA", "invoice", "strasse", "STRASSE", "ss", "k", "kk", "fi", "fine", "日", "äda", "Ä",
    "1.5", "null", "true", "7", "5", "12345", "ada@example.org", "+49-30", "a_b", "%", "_", '"',
    "\\", '"to": "ada"', "to", ": ", "nothing", "body", "attempts", "reason", "e",
]  # fmt: skip


@pytest.fixture
def queue(using, name):
    queue = Queue(name, using=using)
    for body in BODIES:
        queue.put(body)
    return queue


@pytest.fixture
def sqlite_queue(backend_settings, settings):
    settings.DISTLOCK = backend_settings("sqlite")
    yield Queue("letters")
    locks.close_all()


def test_finds_what_every_item_is_asked_for(queue):
    every = queue.page("ready", 1000).items
    assert [item.body for item in every] == BODIES
    for text in [*SEARCHES, str(every[3].id)]:
        page = queue.page("ready", 1000, matching=text)
        assert [item.id for item in page.items] == [one.id for one in every if one.matches(text)]
        assert page.looked_at == len(every)


def test_goes_on_where_a_page_has_ended(queue):
    every = [one for one in queue.page("ready", 1000).items if one.matches("a")]
    page = queue.page("ready", 2, matching="a")
    found = [*page.items]
    while page.after is not None:
        page = queue.page("ready", 2, matching="a", after=page.after)
        found += page.items
    assert found == every


@pytest.mark.parametrize("broken", ["ad", "[1]", '{"other": "ad"}'])
def test_an_item_that_cannot_be_read_is_found_by_why(sqlite_queue, broken):
    sqlite_queue.put_many(["ada", "bob"])
    broken_one = DatabaseRecord.objects.filter(name__startswith="i/r/", value__contains="ada")
    assert broken_one.update(value=broken) == 1
    every = sqlite_queue.page("ready").items
    for text in ("cannot", "ad", "other", "bob"):
        page = sqlite_queue.page("ready", matching=text)
        assert [one.id for one in page.items] == [one.id for one in every if one.matches(text)]
