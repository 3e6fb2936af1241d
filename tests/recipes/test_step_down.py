"""A leader is asked to step down, and watches for that from soon after its term has begun."""

import threading

import pytest

from distlock.recipes import Election, candidacy
from distlock.recipes.following import Watch
from tests.contract.watch import eventually, passed
from tests.recipes.conftest import UNHURRIED
from tests.recipes.standing import terms


@pytest.fixture
def kind():
    return "local"


def watches():
    return [one for one in threading.enumerate() if one.name == "distlock-watch"]


@pytest.mark.parametrize("seconds", [0, 0.03, 0.05, 0.07, 0.2])
def test_it_is_seen_however_early_it_comes(using, name, seconds):
    election = Election(name, using=using)
    election.campaign()
    passed(seconds)
    assert Election(name, using=using).step_down(election.term)
    eventually(lambda: not election.leading)
    election.resign()
    assert terms(election)[-1][1] == "stepped down"


def test_it_is_seen_where_no_thread_can_be_had_at_first(using, name, refuse):
    election = Election(name, using=using)
    refuse("distlock-watch", 1)
    election.campaign()
    assert Election(name, using=using).step_down(election.term)
    eventually(lambda: not election.leading)
    election.resign()


@pytest.mark.parametrize("error", [MemoryError, OSError])
def test_it_is_seen_where_it_could_not_be_watched_at_first(using, name, monkeypatch, error):
    failures = []

    def fail_once(*arguments, **options):
        if not failures:
            failures.append(error())
            raise failures[0]
        return Watch(*arguments, **options)

    monkeypatch.setattr("distlock.recipes.candidacy.Watch", fail_once)
    election = Election(name, using=using)
    election.campaign()
    assert Election(name, using=using).step_down(election.term)
    eventually(lambda: not election.leading)
    election.resign()
    assert failures


@pytest.mark.usefixtures("only_hints")
def test_it_comes_too_late_for_one_who_resigns(using, wrapped, name, monkeypatch):
    """A leader that is leaving when it would look first does not step down as well."""
    told, looks, apply = [], [], wrapped("apply")
    election = Election(name, using=using, on_lost=told.append)
    with monkeypatch.context() as held_back:
        held_back.setattr(candidacy, "call_after", lambda _, look: looks.append(look))
        election.campaign()
    assert Election(name, using=using).step_down(election.term)
    apply.before = lambda *_: looks and looks.pop()()
    election.resign()
    assert not looks
    assert not told
    eventually(lambda: not watches(), UNHURRIED / 2)


@pytest.mark.usefixtures("only_hints")
def test_no_thread_waits_for_it_after_a_short_term(using, name):
    election = Election(name, using=using)
    for _ in range(20):
        election.campaign()
        election.resign()
    passed(0.1)
    eventually(lambda: not watches(), UNHURRIED / 2)
