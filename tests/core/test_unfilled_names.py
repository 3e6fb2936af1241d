"""A name that looks like a template which nobody has filled in is warned of when it is taken."""

import asyncio
import warnings

import pytest

from distlock import Lock, UnfilledTemplate
from distlock.recipes import MultiLock, RWLock, Semaphore

pytestmark = pytest.mark.once


@pytest.fixture(autouse=True)
def backend(local):
    """One in this process."""


def take(name):
    with Lock(name):
        pass


async def take_in_a_task(name):
    async with Lock(name):
        pass


def try_once(name):
    lock = Lock(name)
    assert lock.acquire(blocking=False)
    lock.release()


def take_a_seat(name):
    with Semaphore(name, 1):
        pass


def read(name):
    with RWLock(name).reader():
        pass


def take_several(name):
    with MultiLock(name, "another"):
        pass


def take_as_a_task(name):
    asyncio.run(take_in_a_task(name))


TAKE = [take, take_as_a_task, try_once, take_a_seat, read, take_several]


@pytest.mark.parametrize("taking", TAKE)
def test_it_is_warned_of_however_it_is_taken(taking):
    with pytest.warns(UnfilledTemplate, match=r"\{account_id\} was not filled in"):
        taking("report:{account_id}")


@pytest.mark.parametrize(
    "name", ["{x}", "a{account.pk}", "a{items[0]}", "a{kind!r}", "a{day:%Y}", "a{größe}"]
)
def test_each_kind_of_field_is_known(name):
    with pytest.warns(UnfilledTemplate):
        take(name)


@pytest.mark.parametrize(
    "name", ["a", "{", "}{", "{}", "{0}", "{'a': 1}", "{1, 2}", "{a, b}", "{9f1b-4c}"]
)
def test_other_braces_are_left_alone(name):
    take(name)  # a warning would be an error here


def test_the_warning_names_the_line_and_comes_once_for_each():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            with Lock("report:{here}"):
                pass
        with Lock("report:{here}"):
            pass
    told = [one for one in caught if one.category is UnfilledTemplate]
    assert [one.filename for one in told] == [__file__, __file__]
    first, second = (one.lineno for one in told)
    assert second == first + 2


def test_code_of_no_module_is_warned_too():
    with pytest.warns(UnfilledTemplate):
        exec("with Lock('stock:{sku}'): pass", {"Lock": Lock})


def test_nothing_is_taken_where_a_warning_is_an_error():
    lock = Lock("report:{nothing}")
    with pytest.raises(UnfilledTemplate):
        lock.acquire()
    assert not lock.locked()


@Lock("report:{{literal}}:{text}")
def report(text):
    return text


@MultiLock("report:{text}", "letter:{text}")
def letter(text):
    return text


@pytest.mark.parametrize("function", [report, letter])
def test_what_a_decorator_has_filled_in_is_meant(function):
    assert function("{anna}") == "{anna}"


@Lock("report:{account_id}")
def build(account_id=None):
    return account_id


@Lock("report:{account_id!s}")
def build_all(account_id=None):
    return account_id


@Lock("report:{account.pk}")
def build_for(account):
    return account


class Unsaved:
    pk = None


def test_none_is_no_value_of_a_field():
    with pytest.raises(
        ValueError, match=r"no name for account_id=None: .* write !s after the field"
    ):
        build()


def test_nor_is_the_key_of_a_row_that_is_not_saved_yet():
    with pytest.raises(ValueError, match="None does not distinguish one lock from another"):
        build_for(Unsaved())


def test_it_is_where_the_template_says_so():
    assert build_all() is None
