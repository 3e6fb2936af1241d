"""Candidates that campaign on threads of their own: import ``stand`` from here."""

import threading
from contextlib import suppress

import pytest

from distlock import Lock, LockError
from distlock.backends.store import Put
from distlock.recipes import Election
from tests.contract.actors import PATIENCE
from tests.contract.watch import cleaned_up, eventually


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

    def end(self):
        while self.thread.is_alive():
            with suppress(LockError):
                self.election.resign()
            self.thread.join(0.01)
        with suppress(LockError):
            self.election.resign()


@pytest.fixture
def stand(using, name):
    """``stand("A")``: a candidate, which stands when this returns."""
    made, look = [], Election(name, using=using)

    def make(candidate, **options):
        new = Candidacy(using, name, candidate, **options)
        made.append(new)
        eventually(lambda: candidate in names(look))
        return new

    yield make
    for one in reversed(made):
        one.end()
    eventually(cleaned_up)


def names(election):
    return [one.name for one in election.candidates()]


def terms(election):
    return [(one.candidate, one.why) for one in reversed(election.history())]


def is_free(election):
    """Whether nobody stands, and nobody has the lock."""
    info, lock = election.info(), Lock(f"election:{election.name}", using=election.using)
    return not info.candidates and not lock.locked()


def begins(changes):
    """Whether a change writes down that a term has begun."""
    return any(
        isinstance(one, Put) and one.key == "history" and not one.value["terms"][-1][-1]
        for one in changes
    )
