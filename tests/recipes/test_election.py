"""Elections: who leads, who is next, and what is told of both; on all kinds of backends."""

import threading
from contextlib import suppress

import pytest

from distlock import LockError, LockLost
from distlock.recipes import Election
from tests.contract.actors import PATIENCE
from tests.contract.watch import cleaned_up, eventually
from tests.recipes.every_kind import pytest_generate_tests  # noqa: F401 - pytest calls it


class Candidacy:
    """One candidate that campaigns on a thread of its own."""

    def __init__(self, using, name, candidate, **options):
        self.told = []
        self.election = Election(name, candidate, using=using, on_lost=self.told.append, **options)
        self.result = None
        self.thread = threading.Thread(target=self._campaign, daemon=True)
        self.thread.start()

    def _campaign(self):
        try:
            self.result = self.election.campaign(timeout=PATIENCE)
        except BaseException as error:
            self.result = error

    def leads(self):
        return self.election.leading


@pytest.fixture
def stand(using, name):
    """``stand("A")``: a candidate, which stands when this returns."""
    made = []

    def make(candidate, **options):
        new = Candidacy(using, name, candidate, **options)
        made.append(new)
        look = Election(name, using=using)
        eventually(lambda: candidate in [one.name for one in look.candidates()])
        return new

    yield make
    for one in made:
        with suppress(LockError):
            one.election.resign()
    for one in made:
        one.thread.join(PATIENCE)
        with suppress(LockError):
            one.election.resign()
    eventually(cleaned_up)


def test_leadership_goes_from_a_to_b_to_c(using, name, stand):
    a = stand("A")
    eventually(a.leads)
    b, c = stand("B"), stand("C")
    look = Election(name, using=using)
    assert [one.name for one in look.candidates()] == ["A", "B", "C"]
    assert look.leader().name == "A"
    assert look.leader().term == a.election.term
    first = a.election.term
    a.election.resign()
    eventually(b.leads)
    assert not a.leads()
    assert not c.leads()
    assert b.election.term > first
    b.election.resign()
    eventually(c.leads)
    c.election.resign()
    assert look.leader() is None
    assert [(one.candidate, one.why) for one in look.history()] == [
        ("A", "resigned"),
        ("B", "resigned"),
        ("C", "resigned"),
    ]


def test_a_leader_is_named_by_hand(using, name, stand):
    a, b = stand("A", order="appointed"), stand("B", order="appointed")
    look = Election(name, using=using, order="appointed")
    assert look.leader() is None
    look.appoint("B")
    eventually(b.leads)
    look.appoint("A")
    eventually(lambda: b.told)
    assert not b.leads()
    with pytest.raises(LockLost):
        b.election.check()
    b.election.resign()
    eventually(a.leads)
    assert not b.leads()


def test_resign_to(using, name, stand):
    a = stand("A")
    eventually(a.leads)
    b, c = stand("B"), stand("C")
    a.election.resign("C")
    eventually(c.leads)
    c.election.resign()
    eventually(b.leads)
