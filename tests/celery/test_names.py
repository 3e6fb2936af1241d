"""One call has one name, however its arguments are spelled, in its caller and in its worker."""

import enum
import uuid
from collections import OrderedDict
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from celery import Celery, group
from celery.exceptions import SoftTimeLimitExceeded
from kombu.exceptions import EncodeError
from pydantic import BaseModel, ValidationError, field_validator

from distlock import locks
from distlock.celery import AlreadyQueued, LockedTask
from distlock.exceptions import LockLost
from distlock.types.lease import State
from tests.celery import tasks
from tests.celery.stage import cue, published


class Color(str, enum.Enum):  # noqa: UP042 - what it is named by is not what it is
    RED = "red"


class Size(enum.IntEnum):
    LARGE = 3


class Article(BaseModel):
    number: int
    tags: dict[str, int] = {}
    color: Color = Color.RED


#: What a caller may say, and what others may say for the same.
VALUES = [
    (Color.RED, "red"),
    (Size.LARGE, 3),
    ((1, (2, 3)), [1, [2, 3]]),
    ({"b": 1, "a": {"y": 1, "x": 2}}, {"a": {"x": 2, "y": 1}, "b": 1}),
    ([{"b": 1, "a": 2}], [{"a": 2, "b": 1}]),
    (OrderedDict(b=1, a=2), {"a": 2, "b": 1}),
    ({1: 2}, {"1": 2}),
    (uuid.UUID(int=5), uuid.UUID(int=5)),
    (date(2024, 5, 1), date(2024, 5, 1)),
    (datetime(2024, 5, 1, tzinfo=UTC), datetime(2024, 5, 1, tzinfo=UTC)),
    (Decimal("1.50"), Decimal("1.50")),
    (b"ab", b"ab"),
    (1.5, 1.5),
    (True, True),
    ("text", "text"),
]
#: Those that are the same for a serializer that keeps more than JSON does.
KEPT = {
    "json": VALUES,
    "msgpack": [VALUES[number] for number in (0, 1, 2, 3, 4, 5, 12, 13, 14)],
    "pickle": [value for number, value in enumerate(VALUES) if number not in (5, 6)],
}
PAIRS = [
    pytest.param(serializer, value, same, id=f"{serializer}-{value!r}")
    for serializer, values in KEPT.items()
    for value, same in values
]


@pytest.fixture
def app(backend_settings, settings):
    """An app whose messages nobody takes; locks of this process."""
    settings.DISTLOCK = backend_settings("local")
    app = Celery("names", set_as_current=False, broker="memory://", backend="cache+memory://")
    app.conf.accept_content = ["json", "msgpack", "pickle"]
    app.conf.task_default_queue = f"names-{uuid.uuid4().hex}"
    yield app
    app.close()
    locks.close_all()


def task_of(app, function, **options):
    given = {"name": "shop.named", "shared": False, "base": LockedTask, "bind": True, **options}
    return app.task(**given)(function)


def of_value(self, value=Color.RED):
    return self.lock.name


def of_article(self, article: Article):
    return self.lock.name


def sent(app):
    """Return the arguments of the oldest message, as a worker gets them."""
    with app.connection() as connection:
        queue = connection.SimpleQueue(app.conf.task_default_queue, accept=app.conf.accept_content)
        args, kwargs, _ = queue.get(block=False).payload
        queue.close()
    return args, kwargs


@pytest.mark.parametrize(("serializer", "value", "same"), PAIRS)
def test_all_ways_to_say_a_value_make_one_name(app, serializer, value, same):
    task = task_of(
        app, of_value, lock="of:{value}", queueing_lock="of:{value}", serializer=serializer
    )
    first = task.delay(value)
    assert task.delay(value=same).id == first.id
    args, kwargs = sent(app)
    assert task.lock_name(args, kwargs) == task.lock_name((value,), {})
    assert task.lock_name((), {"value": same}) == task.lock_name((value,), {})
    assert {task(value), task.apply((same,)).get(), task.apply(args, kwargs).get()} == {
        task.lock_name((value,), {})
    }
    assert task.unqueue(same) == first.id


class TestTheName:
    @pytest.fixture
    def task(self, app):
        return task_of(app, of_value, lock="of:{value}", queueing_lock="of:{value}")

    def test_is_made_of_what_the_worker_gets(self, task):
        assert task.lock_name((Color.RED,), {}) == "of:red"
        assert task.lock_name(({1: (2, 3)},), {}) == "of:{'1': [2, 3]}"

    def test_is_none_for_none(self, task):
        with pytest.raises(ValueError, match="shop.named.* no name for value=None"):
            task.delay(None)

    def test_of_a_default_is_that_of_the_same_value(self, task):
        assert task.lock_name((), {}) == task.lock_name(("red",), {})

    def test_of_a_value_that_cannot_be_sent_is_as_it_is(self, task):
        class Account:
            def __str__(self):
                return "account 7"

        assert task(Account()) == "of:account 7"
        with pytest.raises(EncodeError):
            task.delay(Account())
        assert locks["default"].inspect("queued:of:account 7").state is State.FREE

    def test_of_further_arguments_is_made_of_each(self, app):
        def body(self, *values, **options):
            return self.lock.name

        task = task_of(app, body, lock="of:{values}:{options}")
        assert task(Color.RED, b=1, a=(2,)) == "of:['red']:{'a': [2], 'b': 1}"

    def test_from_a_function_is_made_of_the_same(self, app):
        def name(value):
            return f"of:{value}"

        task = task_of(app, of_value, lock=name)
        assert task({2: Color.RED, 1: (1, 2)}) == "of:{'1': [1, 2], '2': 'red'}"
        assert task() == "of:red"

    def test_of_a_field_of_an_object_is_that_of_the_object_received(self, app):
        task = task_of(app, of_value, lock="of:{value.name}")
        with pytest.raises(ValueError, match="no name for value='red'"):
            task(Color.RED)

    def test_is_made_by_the_serializer_of_the_app(self, app):
        app.conf.task_serializer = "pickle"
        task = task_of(app, of_value, lock=lambda value: f"of:{value!r}")
        assert task((1, 2)) == "of:(1, 2)"

    def test_is_made_by_the_serializer_of_a_subclass(self, app):
        class Base(LockedTask):
            lock = staticmethod(lambda value: f"of:{value!r}")

            def run(self, value):
                return self.lock.name

        class Exact(Base):
            name = "exact"
            serializer = "pickle"

        assert app.register_task(Exact())((1, 2)) == "of:(1, 2)"

    @pytest.mark.parametrize("error", [SoftTimeLimitExceeded(), LockLost("gone")])
    def test_lets_an_error_through_that_interrupts_the_serializer(self, task, error):
        class Interrupted:
            def __json__(self):
                raise error

        with pytest.raises(type(error)):
            task.lock_name((Interrupted(),), {})

    def test_of_the_progress_is_made_alike(self, app):
        def body(self, value):
            return self.progress.name

        task = task_of(app, body, progress="of:{value}")
        assert task(Color.RED) == task.apply(("red",)).get() == "of:red"


class TestAValidatedModel:
    @pytest.fixture(params=[True, False], ids=["bound", "unbound"])
    def task(self, request, app):
        options = {"lock": "of:{article.number}:{article.tags}", "pydantic": True}
        options["queueing_lock"] = options["lock"]
        if request.param:
            return task_of(app, of_article, **options)

        def unbound(article: Article):
            return app.tasks["shop.named"].lock.name

        return task_of(app, unbound, bind=False, **options)

    def test_has_one_name_as_a_model_and_as_a_dictionary(self, app, task):
        model = Article(number=7, tags={"b": 1, "a": 2})
        ways = [model, {"number": 7, "tags": {"a": 2, "b": 1}}, {"tags": model.tags, "number": "7"}]
        assert {task.lock_name((way,), {}) for way in ways} == {"of:7:{'a': 2, 'b': 1}"}
        first = task.delay(ways[1])
        assert [task.delay(article=way).id for way in ways] == [first.id] * 3
        assert task.lock_name(*sent(app)) == task.lock_name((model,), {})
        for way in ways:
            assert task(way) == task.apply((way,)).get() == "of:7:{'a': 2, 'b': 1}"

    def test_that_is_not_valid_is_refused_when_it_is_called(self, app, task):
        with pytest.raises(ValidationError, match="number"):
            task.delay({"number": "seven"})
        with pytest.raises(ValidationError, match="number"):
            task({"number": "seven"})
        assert task.apply(({"number": "seven"},)).state == "FAILURE"

    def test_is_whole_in_one_order(self, app):
        task = task_of(app, of_article, lock="of:{article}", pydantic=True)
        names = {
            task.lock_name((way,), {})
            for way in [
                Article(number=7, tags={"b": 1, "a": 2}),
                Article(number=7, tags={"a": 2, "b": 1}),
                {"tags": {"b": 1, "a": 2}, "number": 7},
            ]
        }
        assert len(names) == 1

    def test_is_validated_as_the_task_says(self, app):
        seen = []

        class Careful(Article):
            @field_validator("number")
            @classmethod
            def see(cls, number, info):
                seen.append((info.context["shop"], info.context["celery_task_name"]))
                return number

        def body(self, article: Careful | None = None, other: Careful = None):
            return self.lock.name

        task = task_of(
            app,
            body,
            lock="of:{article.number}",
            pydantic=True,
            pydantic_strict=True,
            pydantic_context={"shop": "berlin"},
        )
        assert task({"number": 7}) == "of:7"
        assert set(seen) == {("berlin", "shop.named")}
        with pytest.raises(ValidationError):
            task.lock_name(({"number": "7"},), {})

    def test_leaves_the_other_arguments_to_the_serializer(self, app):
        def body(self, article: Article, value=Color.RED, *values):
            return self.lock.name

        task = task_of(app, body, lock="of:{article.number}:{value}:{values}", pydantic=True)
        expected = "of:7:red:[[1, 2]]"
        assert task({"number": 7}, Color.RED, (1, 2)) == expected
        assert task(Article(number=7), "red", [1, 2]) == expected
        assert task({"number": 7}) == "of:7:red:[]"


def test_a_constant_name_serializes_nothing(app):
    class Unsendable:
        def __json__(self):
            raise AssertionError

    task = task_of(app, of_value, lock="one")
    assert task(Unsendable()) == "one"


def test_parts_of_a_canvas_are_named_alike(app):
    task = task_of(app, of_value, queueing_lock="of:{value}")
    first, second = group(task.s((1, 2)), task.s([1, 2])).apply_async().results
    assert isinstance(second.result, AlreadyQueued)
    assert second.result.task_id == first.id


WORK = [
    (tasks.of_value, Color.RED, "red"),
    (tasks.of_value, (1, {2: "b", 1: "a"}), [1, {"1": "a", "2": "b"}]),
    (
        tasks.of_model,
        tasks.Article(number=7, tags={"b": 1, "a": 2}),
        {"tags": {"a": 2, "b": 1}, "number": "7"},
    ),
]


@pytest.mark.parametrize(("task", "value", "same"), WORK, ids=["enum", "nested", "model"])
class TestAWorker:
    def test_keeps_out_who_says_the_same_in_another_way(self, prefork, key, task, value, same):
        result = task.apply_async((key, value), queue="prefork")
        published(f"{key}:started")
        assert task(key, value) is None  # skipped
        assert task(key, same) is None
        cue(f"{key}:end")
        assert result.get(timeout=30) == key

    def test_gets_work_once_that_is_queued_in_two_ways(self, prefork, key, task, value, same):
        first = task.apply_async((key, value), queue="prefork", countdown=600)
        second = task.apply_async((key, same), queue="prefork", countdown=600)
        assert second.id == first.id
        assert task.unqueue(key, same) == first.id
        assert locks["mariadb"].inspect(task.queueing_name((key, value), {})).state is State.FREE
