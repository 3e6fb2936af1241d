"""What cannot be right about a locked task is refused when it is made, by name."""

from dataclasses import dataclass

import pytest
from celery import Celery

from distlock.celery import LockedTask, locked_task

WRONG = [
    (TypeError, {}, "give it lock=, rate=, queueing_lock=, progress=, or several"),
    (ValueError, {"lock": "a:{acount}"}, r"lock='a:{acount}'.*'acount'.* are: account"),
    (ValueError, {"queueing_lock": "a:{x}"}, r"queueing_lock='a:{x}'.*'x'"),
    (TypeError, {"lock": 7}, "lock must be a name or a function that returns one, not 7"),
    (ValueError, {"lock": " a"}, r"lock=' a': name must not begin or end with space, got ' a'"),
    (ValueError, {"queueing_lock": "a" * 560}, "queueing_lock='a+': name must have at most 564"),
    (ValueError, {"lock": "a", "on_busy": "later"}, "on_busy must be .* or 'retry', not 'later'"),
    (ValueError, {"lock": "a", "on_unavailable": "x"}, "on_unavailable must be .*, not 'x'"),
    (ValueError, {"lock": "a", "unavailable_timeout": 0}, "unavailable_timeout must be .*, got 0"),
    (ValueError, {"lock": "a", "timeout": 0}, "timeout must be .* greater than 0, got 0"),
    (TypeError, {"lock": "a", "busy_delay": "1"}, "busy_delay must be a number .*, not '1'"),
    (ValueError, {"lock": "a", "busy_delay": 90}, "busy_delay must not be longer .* 90"),
    (ValueError, {"lock": "a", "busy_limit": 0}, "busy_limit must be at least 1, got 0"),
    (TypeError, {"lock": "a", "busy_limit": 1.5}, "busy_limit must be a whole number or None.*1.5"),
    (ValueError, {"lock": "a", "lease": -1}, "lease must be .* greater than 0, got -1"),
    (ValueError, {"lock": "a", "at_least": 0}, "at_least must be .* greater than 0, got 0"),
    (ValueError, {"lock": "a", "slots": 0}, "slots must be at least 1 .*, got 0"),
    (TypeError, {"lock": "a", "slots": 1.5}, "slots must be a whole number, not 1.5"),
    (TypeError, {"lock": "a", "slots": True}, "slots must be a whole number, not True"),
    (ValueError, {"lock": "a", "slots": "3"}, "slots must be a number or 'agreed', not '3'"),
    (ValueError, {"lock": "a", "slots": 3, "at_least": 5}, "at_least=5 does not go with slots=3"),
    (ValueError, {"lock": "a", "on_lost": "shout"}, "on_lost must be .*, not 'shout'"),
    (TypeError, {"lock": "a", "on_lost": 1}, "on_lost must be callable, not 1"),
    (TypeError, {"lock": "a", "using": None}, "using must be an alias .*, not None"),
    (ValueError, {"queueing_lock": "a", "until": "later"}, "until must be .*, not 'later'"),
    (ValueError, {"queueing_lock": "a", "on_queued": "x"}, "on_queued must be .*, not 'x'"),
    (ValueError, {"queueing_lock": "a", "queueing_ttl": 0}, "queueing_ttl must be .*, got 0"),
    (ValueError, {"queueing_lock": "a", "queueing_ttl": 2e9}, "queueing_ttl must be at most .*"),
    (TypeError, {"rate": 30}, "rate must be a text like '30/m', not 30"),
    (ValueError, {"rate": "30/x"}, "rate must be a number, a slash and s, m, h or d.* not '30/x'"),
    (ValueError, {"rate": "0/m"}, "rate must be a number, a slash .*, not '0/m'"),
    (ValueError, {"rate": "1/0s"}, "rate must be a number, a slash .*, not '1/0s'"),
    (ValueError, {"rate": "1/8d"}, "rate='1/8d': period must be at most 604800 .*, got 691200"),
    (ValueError, {"rate": "1/s", "rate_name": "a:{x}"}, r"rate_name='a:{x}'.*'x'"),
    (TypeError, {"lock": "a", "base": dict}, "base must be a subclass of LockedTask, not .*dict"),
    (TypeError, {"lock": "a", "until": "finished"}, "until has no meaning without queueing_lock"),
    (TypeError, {"queueing_lock": "a", "on_busy": "skip"}, "on_busy has no meaning without lock"),
    (TypeError, {"queueing_lock": "a", "slots": 3}, "slots has no meaning without lock"),
    (TypeError, {"rate": "1/s", "slots": 3}, "slots has no meaning without lock"),
    (TypeError, {"lock": "a", "rate_name": "b"}, "rate_name has no meaning without rate"),
]  # fmt: skip


def report(account):
    """The body of the task."""


def weekly_report(account, kind="weekly"):
    """One with a default."""


def bound_report(self, account, kind="weekly"):
    """The same, bound."""


def made(app, body, **options):
    """Make a task of an app."""
    return app.task(**{"name": "shop.report", "shared": False, "base": LockedTask, **options})(body)


@pytest.mark.parametrize(("error", "options", "says"), WRONG)
def test_at_decoration(error, options, says):
    with pytest.raises(error, match=rf"task shop\.report: {says}"):
        locked_task(name="shop.report", **options)(report)


@pytest.fixture
def app():
    """An app of its own, which runs tasks in place."""
    app = Celery("options", set_as_current=False, broker="memory://", backend="cache+memory://")
    yield app
    app.close()


@pytest.mark.parametrize(("error", "options", "says"), WRONG[1:-6])
def test_of_a_task_with_the_base_class(app, error, options, says):
    with pytest.raises(error, match=rf"task shop\.report: {says}"):
        made(app, report, lazy=False, **options)


def test_of_a_subclass():
    with pytest.raises(ValueError, match="task .*Careless: on_busy must be"):

        class Careless(LockedTask):
            on_busy = "whatever"

    with pytest.raises(ValueError, match="task .*Mistaken: lock='{b}'.*its parameters are: a"):

        class Mistaken(LockedTask):
            lock = "{b}"

            def run(self, a):
                pass


@pytest.mark.parametrize(
    ("option", "value"),
    [("blocking", False), ("renew", False), ("owner", "o"), ("description", "d")],
)
def test_an_option_of_lock_that_a_task_has_not_is_refused(option, value):
    with pytest.raises(TypeError, match=f"task .*report: {option}={value!r} is not an option of a"):
        locked_task(lock="report", **{option: value})(report)


def test_options_have_to_be_named():
    with pytest.raises(TypeError, match="options by name"):
        locked_task(report)


def test_subclasses_inherit(app):
    class Patient(LockedTask):
        on_busy = "wait"
        timeout = 7
        lock = staticmethod(lambda account: f"patient:{account}")

    task = made(app, report, base=Patient, timeout=8)
    assert (task.locking.on_busy, task.locking.timeout) == ("wait", 8)
    assert task.lock_name((7,), {}) == "patient:7"
    assert Patient.locking.timeout == 7
    assert LockedTask.locking.lock is None


def test_a_subclass_may_take_a_lock_away(app):
    class Locked(LockedTask):
        lock = queueing_lock = "a"

        def run(self):
            pass

    class Free(Locked):
        lock = None

    assert (Free.lock_name, Free.queueing_name((), {})) == (None, "queueing:a")


def test_annotations_of_the_app_are_options_too(app):
    app.conf.task_annotations = {"shop.report": {"on_busy": "skip"}}
    task = made(app, report, lock="a:{account}")
    assert task.locking.on_busy == "skip"
    assert task.lock_name((7,), {}) == "a:7"


@pytest.mark.parametrize(
    ("args", "kwargs", "name"),
    [((7,), {}, "a:7:weekly"), ((), {"account": 7}, "a:7:weekly"), ((7, "daily"), {}, "a:7:daily")],
)
@pytest.mark.parametrize("bind", [False, True])
@pytest.mark.parametrize(
    "template", ["a:{account}:{kind}", lambda account, kind: f"a:{account}:{kind}"]
)
def test_names_are_made_from_the_arguments(app, args, kwargs, name, bind, template):
    body = bound_report if bind else weekly_report
    task = app.task(name="shop.report", shared=False, base=LockedTask, lock=template, bind=bind)(
        body
    )
    assert task.lock_name(args, kwargs) == name


@pytest.mark.parametrize(
    ("template", "args", "error", "says"),
    [
        ("a:{account}", (), TypeError, "lock='a:{account}'.*missing a required argument"),
        ("a:{account.pk}", (7,), ValueError, "lock='a:{account.pk}'.*account=7.*'pk'"),
        ("a:{account}", ("\n",), ValueError, r"lock=.*control characters, got 'a:\\n'"),
        (lambda account: None, (7,), TypeError, "lock=.*name must be a str, not None"),
        (lambda account: {}[account], (7,), ValueError, "lock=.*account=7"),
    ],
)  # fmt: skip
def test_at_call_time(app, template, args, error, says):
    task = made(app, report, lock=template)
    with pytest.raises(error, match=rf"task shop\.report: {says}"):
        task.lock_name(args, {})


def test_what_returns_names_need_not_be_hashable(app):
    @dataclass
    class Named:
        prefix: str

        def __call__(self, account):
            return f"{self.prefix}:{account}"

    @app.task(base=LockedTask, queueing_lock=Named("report"))
    def task(account):
        pass

    assert task.queueing_name((7,), {}).endswith("report:7")


def test_two_locks_of_one_name_are_two(app):
    task = app.task(name="shop.report", shared=False, base=LockedTask, lock="a", queueing_lock="a")(
        report
    )
    assert task.lock_name((1,), {}) == "a"
    assert task.queueing_name((1,), {}) == "queueing:a"
