"""What somebody does to a recipe is in the audit log once, whichever backend the recipe is in."""

import asyncio
import logging
import threading

import pytest
from django.db.backends.signals import connection_created

from distlock import audit
from distlock.exceptions import LockError, LockLost, StaleToken
from distlock.locking.base_lock import twin_of
from distlock.models import AuditEntry
from distlock.recipes import Config, Election, Progress, Queue, Semaphore, Topic
from tests.contract.watch import eventually
from tests.recipes.every_kind import pytest_generate_tests  # noqa: F401 - pytest calls it
from tests.recipes.standing import stand  # noqa: F401 - a fixture
from tests.recipes.test_queue_pages import bury

WHO = {"who": "ada", "reason": "load"}


@pytest.fixture(autouse=True, scope="module")
def _own_threads():
    """A thread that has written entries of other tests knows the database of those."""
    eventually(lambda: not any("distlock-audit" in one.name for one in threading.enumerate()))


@pytest.fixture(autouse=True)
def _migrated(backend_settings):
    backend_settings("sqlite")
    AuditEntry.objects.all().delete()


@pytest.fixture(params=["thread", "task"])
def do(request):
    """``do(config, "set", 1)``: call a method, or its twin."""

    def call(recipe, method, *args, **options):
        if request.param == "thread":
            return getattr(recipe, method)(*args, **options)

        async def ask():
            return await getattr(recipe, twin_of(method))(*args, **options)

        return asyncio.run(ask())

    return call


@pytest.fixture
def written(name):
    """``written(count)``: the kind, action, who and text of each entry, once there are so many."""

    def read(count=1):
        found = AuditEntry.objects.filter(using="default", name=name).order_by("at", "pk")
        eventually(lambda: found.count() >= count)
        return [(entry.kind, entry.action, entry.who, entry.text) for entry in found]

    return read


def test_a_change_of_configuration(using, name, do, written):
    config = Config(name, using=using)
    assert do(config, "set", 1, **WHO) == 1
    written(1)
    assert do(config, "set", 2) == 2
    written(2)
    assert do(config, "rollback", 1, **WHO) == 3
    with pytest.raises(StaleToken):
        do(config, "set", 3, if_version=1)
    assert written(3) == [
        ("config", "set", "ada", "Set: version 1. Reason: load"),
        ("config", "set", audit.system_user(), "Set: version 2."),
        ("config", "rollback", "ada", "Rolled back to version 1: version 3. Reason: load"),
    ]


def test_a_bound_of_a_queue(using, name, do, written):
    do(Queue(name, using=using), "resize", 20, **WHO)
    assert written() == [("queue", "resize", "ada", "Takes 20 items at most now. Reason: load")]
    value = Config(f"queue:{name}", using=using).get()
    assert (value.value, value.who, value.reason) == (20, "ada", "load")


def test_a_purge_that_removed_something(using, name, do, written):
    queue = Queue(name, using=using)
    queue.put_many("ab")
    assert do(queue, "purge", **WHO) == 2
    assert do(queue, "purge", **WHO) == 0
    assert do(queue, "purge", dead=True, **WHO) == 0
    text = "Removed: 2 items that are ready. Reason: load"
    assert written() == [("queue", "purge", "ada", text)]


def test_a_delivery_that_was_taken_back(using, name, do, written):
    queue = Queue(name, using=using)
    queue.put("a")
    held = queue.get()
    token, (info,) = held.token, queue.info().deliveries
    assert not do(queue, "force_release", held.id, token + 1, **WHO)
    assert do(queue, "force_release", held.id, token, **WHO)
    text = f"Taken back: item {held.id}, token {token}, consumer {info.owner}. Reason: load"
    assert written() == [("queue", "release", "ada", text)]
    with pytest.raises(LockLost):
        held.ack()


def test_dead_letters_that_were_put_back(using, name, do, written):
    queue = Queue(name, using=using, max_deliveries=1)
    first, *others = bury(queue, range(16))
    queue.resize(14)
    assert written()[0][1] == "resize"
    assert do(queue, "retry", first, **WHO)
    assert not do(queue, "retry", first, **WHO)
    written(2)
    # A change moves twelve: so these are several, and one operation.
    assert do(queue, "retry_many", others, **WHO) == 13
    assert written(3)[1:] == [
        ("queue", "retry", "ada", f"Put back: item {first.id}. Reason: load"),
        ("queue", "retry", "ada", "Put back: 13 of 15 dead letters. Reason: load"),
    ]


def test_dead_letters_that_were_discarded(using, name, do, written):
    queue = Queue(name, using=using, max_deliveries=1)
    letters = bury(queue, "abc")
    assert do(queue, "discard", [*letters, letters[0]], **WHO) == 3
    assert do(queue, "discard", letters, **WHO) == 0
    text = "Discarded: 3 of 3 dead letters. Reason: load"
    assert written() == [("queue", "discard", "ada", text)]


def test_an_appointment_and_a_request_to_step_down(using, name, do, written, stand):  # noqa: F811
    first = stand("A")
    eventually(first.leads)
    stand("B")
    look = Election(name, using=using)
    one = look.candidates()[1]
    with pytest.raises(LockError):
        do(look, "appoint", "C", **WHO)
    do(look, "appoint", "B", **WHO)
    written(1)
    do(look, "appoint", one, **WHO)
    written(2)
    do(look, "appoint", None, **WHO)
    written(3)
    leader = look.leader()
    assert not do(look, "step_down", leader.term - 1, **WHO)
    assert do(look, "step_down", leader.term, **WHO)
    asked = f"Asked to step down: A, term {leader.term}, owner {leader.owner}. Reason: load"
    assert written(4) == [
        ("election", "appoint", "ada", "Appointed: B. Reason: load"),
        ("election", "appoint", "ada", f"Appointed: B, token {one.token}. Reason: load"),
        ("election", "appoint", "ada", "Appointed: nobody. Reason: load"),
        ("election", "step-down", "ada", asked),
    ]


def test_a_resignation_in_favour_of_another_one_is_none(using, name, stand):  # noqa: F811
    first = stand("A")
    eventually(first.leads)
    second = stand("B")
    first.election.resign(to="B")
    eventually(second.leads)
    assert not AuditEntry.objects.filter(name=name).exists()


def test_a_leader_that_was_broken(using, name, do, stand):  # noqa: F811
    first = stand("A")
    eventually(first.leads)
    assert do(Election(name, using=using), "force_release", first.election.term, **WHO)
    found = AuditEntry.objects.filter(name__contains=name)
    eventually(found.all().exists)
    (entry,) = found  # of the lock
    assert (entry.kind, entry.name, entry.who) == ("lock", f"election:{name}", "ada")
    assert entry.text.endswith("Reason: load")


def test_a_number_of_seats(using, name, do, written):
    seats = Semaphore(name, using=using)
    assert do(seats, "resize", 3, **WHO) is None
    written(1)
    assert do(seats, "resize", 5, **WHO) == 3
    assert written(2) == [
        ("semaphore", "resize", "ada", "Has 3 seats now; had no number yet. Reason: load"),
        ("semaphore", "resize", "ada", "Has 5 seats now; had 3. Reason: load"),
    ]


def test_a_request_to_end(using, name, do, written):
    with Progress(name, using=using) as progress:
        report = Progress.get(name, using=using)
        assert not do(progress, "cancel", report.token + 1, **WHO)
        assert do(progress, "cancel", report.token, **WHO)
    text = f"Asked to end: token {report.token}, worker {report.owner}. Reason: load"
    assert written() == [("progress", "cancel", "ada", text)]


def test_what_programs_do_in_their_work_is_none(using, name):
    queue = Queue(name, using=using)
    queue.put("a")
    queue.get().ack()
    Topic(name, using=using).publish("a", who="ada")
    assert not AuditEntry.objects.filter(name=name).exists()


def test_it_costs_one_statement(using, name):
    config, seen = Config(name, using=using), []

    def watch(connection, **others):
        if threading.current_thread().name.startswith("distlock-audit"):
            connection.force_debug_cursor = True
            connection.queries_log.clear()  # a thread has one for all its calls
            seen.append(connection)

    connection_created.connect(watch)
    try:
        config.set(1)
    finally:
        connection_created.disconnect(watch)
    (query,) = [query["sql"] for connection in seen for query in connection.queries_log]
    assert query.startswith('INSERT INTO "database_lock_audit"')


class Nowhere:
    """Keeps the log in a database that the project does not have."""

    def db_for_write(self, model, **hints):
        return "nowhere" if model is AuditEntry else None


def test_all_is_done_where_there_is_no_log(using, name, do, settings, caplog):
    settings.DATABASE_ROUTERS = [Nowhere()]
    with caplog.at_level(logging.WARNING, "distlock"):
        assert do(Config(name, using=using), "set", 1) == 1
        eventually(lambda: "the audit log could not be asked" in caplog.text)
    queue = Queue(name, using=using)
    queue.put("a")
    assert do(queue, "purge") == 1
