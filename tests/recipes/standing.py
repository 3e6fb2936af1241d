"""Candidates that campaign on threads of their own: import ``stand`` from here."""

import threading
from contextlib import suppress

import pytest

from distlock import LockError
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
    return [(one.candidate, one.why) for one in election.history()]
