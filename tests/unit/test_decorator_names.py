"""A decorated function's lock is named by a template filled from the arguments of the call."""

import enum

import pytest

from distlock import Lock


class Color(str, enum.Enum):  # noqa: UP042 - format() writes "Color.RED" for this kind only
    RED = "red"


class Kind(enum.Enum):
    DAILY = 1
    FIELD = (1, 2)


class Names:
    """Records the name that each call of a decorated function locked, in this test's backend."""

    def __init__(self):
        self.seen = []

    def __call__(self, sender, lease, using, **kwargs):
        if using == "local":
            self.seen.append(lease.name)


@pytest.fixture
def names():
    from distlock.signals import lock_acquired

    names = Names()
    lock_acquired.connect(names)
    yield names.seen
    lock_acquired.disconnect(names)


def locked(template, **options):
    return Lock(template, using="local", **options)


def test_a_name_without_fields_is_taken_as_it_is(names):
    @locked("report")
    def build(): ...

    build()
    assert names == ["report"]


def test_a_field_is_filled_from_a_positional_argument(names):
    @locked("report:{account_id}")
    def build(account_id): ...

    build(7)
    assert names == ["report:7"]


def test_a_field_is_filled_from_a_keyword(names):
    @locked("report:{account_id}")
    def build(*, account_id): ...

    build(account_id=7)
    assert names == ["report:7"]


def test_a_field_is_filled_from_a_default(names):
    @locked("report:{account_id}:{kind}")
    def build(account_id, kind="daily"): ...

    build(7)
    assert names == ["report:7:daily"]


def test_an_attribute_and_an_item_can_be_fields(names):
    class Account:
        pk = 7

    @locked("{account.pk}:{options[kind]}")
    def build(account, options): ...

    build(Account(), {"kind": "daily"})
    assert names == ["7:daily"]


def test_a_format_can_be_given(names):
    @locked("{number:05d}:{name!r}")
    def build(number, name): ...

    build(7, "x")
    assert names == ["00007:'x'"]


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (Color.RED, "red"),
        (Kind.DAILY, "1"),
        (Kind.FIELD, "Kind.FIELD"),
        ((1, 2), "[1, 2]"),
        ({"b": (1,), "a": Color.RED}, "{'a': 'red', 'b': [1]}"),
        ({"b", "a", "c"}, "{'a', 'b', 'c'}"),
        (frozenset("ab"), "{'a', 'b'}"),
        ([{"b": 1, "a": 2}], "[{'a': 2, 'b': 1}]"),
    ],
)
def test_a_value_is_written_in_one_way(names, value, written):
    @locked("{value}")
    def build(value): ...

    build(value)
    assert names == [written]


def test_a_conversion_and_a_format_are_of_the_value_of_an_enum_member(names):
    @locked("{color!r}:{color:>5}:{color.name}")
    def build(color): ...

    build(Color.RED)
    assert names == ["'red':  red:RED"]


def test_extra_keywords_can_be_fields(names):
    @locked("{kwargs[colour]}")
    def build(**kwargs): ...

    build(colour="red")
    assert names == ["red"]


def test_extra_positional_arguments_can_be_fields(names):
    @locked("{args[0]}")
    def build(*args): ...

    build("first", "second")
    assert names == ["first"]


def test_a_method_can_use_self(names):
    class Account:
        pk = 9

        @locked("account:{self.pk}")
        def close(self):
            return self.pk

    assert Account().close() == 9
    assert names == ["account:9"]


def test_a_class_method_and_a_static_method_can_be_locked(names):
    class Account:
        @classmethod
        @locked("{cls.__name__}")
        def count(cls): ...

        @staticmethod
        @locked("{number}")
        def check(number): ...

    Account.count()
    Account.check(3)
    assert names == ["Account", "3"]


def test_doubled_braces_are_braces(names):
    @locked("{{literal}}:{n}")
    def build(n): ...

    build(1)
    assert names == ["{literal}:1"]


def test_an_argument_with_braces_is_not_filled_again(names):
    @locked("{text}")
    def build(text): ...

    build("{text}")
    assert names == ["{text}"]


async def test_an_async_function_is_named_the_same_way(names):
    @locked("report:{account_id}:{kind}")
    async def build(account_id, kind="daily"): ...

    await build(7)
    assert names == ["report:7:daily"]


def test_a_field_that_is_no_argument_is_refused_when_decorating():
    with pytest.raises((ValueError, TypeError, LookupError), match="acount"):

        @locked("report:{acount}")
        def build(account): ...


@pytest.mark.parametrize("template", ["{}", "{0}"])
def test_a_field_without_a_name_is_refused_when_decorating(template):
    with pytest.raises((ValueError, TypeError, LookupError)):

        @locked(template)
        def build(account): ...


def test_a_template_that_does_not_end_is_refused_when_decorating():
    with pytest.raises(ValueError):

        @locked("report:{account")
        def build(account): ...


@pytest.mark.parametrize("value", ["", "a\nb", "x" * 600])
def test_a_call_whose_name_no_lock_can_have_does_not_run(value):
    ran = []

    @locked("{value}")
    def build(value):
        ran.append(value)

    with pytest.raises(ValueError, match="^name must "):
        build(value)
    assert not ran


def test_arguments_that_do_not_fit_are_a_type_error_as_without_the_lock():
    @locked("report:{account_id}")
    def build(account_id): ...

    with pytest.raises(TypeError):
        build()


def test_the_function_keeps_its_name_and_docstring():
    @locked("report")
    def build():
        """Build it."""

    assert (build.__name__, build.__doc__) == ("build", "Build it.")


def test_an_async_function_stays_one():
    import inspect

    @locked("report")
    async def build(): ...

    assert inspect.iscoroutinefunction(build)


def test_a_generator_is_refused_when_decorating():
    with pytest.raises(TypeError, match="generator"):

        @locked("report")
        def build():
            yield 1


def test_an_async_generator_is_refused_when_decorating():
    with pytest.raises(TypeError, match="generator"):

        @locked("report")
        async def build():
            yield 1


@pytest.mark.parametrize("thing", [7, "build", None])
def test_what_is_no_function_cannot_be_decorated(thing):
    with pytest.raises(TypeError):
        locked("report")(thing)


def test_a_class_cannot_be_decorated():
    with pytest.raises(TypeError):

        @locked("report")
        class Report: ...


def test_a_text_that_is_no_template_is_named():
    with pytest.raises(ValueError, match="^name 'report:{x' is not a template: expected '}'"):

        @Lock("report:{x")
        def report(x):
            pass
