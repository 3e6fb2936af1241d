"""A place in the queue outlives the process that took it, so not every backend can keep it."""

import pytest
from celery import Celery
from django.core.checks import run_checks

from distlock import NotSupported
from distlock.apps import CHECKS_TAG
from distlock.celery import LockedTask, locked_task

ZOOKEEPER = {
    "BACKEND": "distlock.backends.zookeeper.ZooKeeperBackend",
    "LOCATION": "127.0.0.1:1",  # nobody is asked
}
DATABASE = {"BACKEND": "distlock.backends.database.DatabaseBackend"}
WAY_OUT = r"Set queueing_using to one of: 'queue' \(DatabaseBackend\)\."


def report(account):
    """The body of the task."""


def refusal(option, alias, way_out):
    """What the message says, as a pattern."""
    return (
        rf"^task shop\.report: {option}='{alias}' cannot keep queueing_lock: what ZooKeeperBackend"
        rf" \(DISTLOCK\['{alias}'\]\) holds ends with the process that took it\. {way_out}$"
    )


@pytest.fixture
def app():
    """An app of its own; nothing takes its messages."""
    app = Celery("places", set_as_current=False, broker="memory://", backend="cache+memory://")
    yield app
    app.close()


@pytest.fixture
def zookeeper_first(settings):
    """The default backend is ZooKeeper, beside it is a database."""
    settings.DISTLOCK = {"default": ZOOKEEPER, "queue": DATABASE}


@pytest.mark.parametrize(
    ("option", "options"),
    [("using", {}), ("using", {"lock": "a"}), ("queueing_using", {"queueing_using": "default"})],
)
def test_zookeeper_is_refused_at_decoration(zookeeper_first, option, options):
    with pytest.raises(NotSupported, match=refusal(option, "default", WAY_OUT)):
        locked_task(name="shop.report", queueing_lock="a", **options)(report)


def test_zookeeper_is_refused_of_a_task_class(zookeeper_first):
    with pytest.raises(NotSupported, match=refusal("using", "default", WAY_OUT)):

        class Report(LockedTask):
            name = "shop.report"
            queueing_lock = "a"

            def run(self):
                pass


def test_where_no_alias_can_the_message_says_so(settings):
    settings.DISTLOCK = {"default": ZOOKEEPER}
    way_out = r"No alias of DISTLOCK can: add one for a database, and set queueing_using to it\."
    with pytest.raises(NotSupported, match=refusal("using", "default", way_out)):
        locked_task(name="shop.report", queueing_lock="a")(report)


def test_an_alias_that_can_is_all_it_takes(zookeeper_first, app):
    task = app.task(
        name="shop.report", shared=False, base=LockedTask, queueing_lock="a", queueing_using="queue"
    )(report)
    assert task.locking.queueing_using == "queue"


def test_running_locks_may_be_there(zookeeper_first, app):
    task = app.task(name="shop.report", shared=False, base=LockedTask, lock="a")(report)
    assert task.locking.using == "default"


def test_a_setting_that_came_later_is_refused_at_the_first_call(settings, app):
    settings.DISTLOCK = {"default": DATABASE}
    task = app.task(name="shop.report", shared=False, base=LockedTask, queueing_lock="a")(report)
    task.bind(app)
    settings.DISTLOCK = {"default": ZOOKEEPER, "queue": DATABASE}
    with pytest.raises(NotSupported, match=refusal("using", "default", WAY_OUT)):
        task.delay(7)


def test_a_check_finds_it_too(settings):
    settings.DISTLOCK = {"default": DATABASE}
    locked_task(name="shop.report", queueing_lock="a")(report)
    settings.DISTLOCK = {"default": ZOOKEEPER, "queue": DATABASE}
    checked = run_checks(tags=[CHECKS_TAG])
    found = {message.obj: message.msg for message in checked if message.id == "distlock.E008"}
    assert "using='default' cannot keep queueing_lock" in found["task shop.report"]
