"""``Lock.of()``: the lock of a row, by its model and its primary key."""

import asyncio
import uuid

import pytest
from django.contrib.auth.models import Group
from django.db import models

from distlock import Lock, LockBusy, LockNotHeld
from distlock.recipes import MultiLock
from distlock.types.values import MAX_NAME


def model(name, **fields):
    """Return a model whose rows are nowhere."""
    meta = type("Meta", (), {"app_label": "rows", "managed": False})
    return type(name, (models.Model,), {"__module__": __name__, "Meta": meta, **fields})


Plain = model("Plain")
Code = model("Code", code=models.TextField(primary_key=True))
Ticket = model("Ticket", key=models.UUIDField(primary_key=True, default=uuid.uuid4))
Detail = model("Detail", plain=models.OneToOneField(Plain, models.CASCADE, primary_key=True))
Line = model(
    "Line",
    pk=models.CompositePrimaryKey("order", "part"),
    order=models.IntegerField(),
    part=models.TextField(),
)


class PlainProxy(Plain):
    class Meta:
        proxy = True
        app_label = "rows"


def saved(kind, **fields):
    return kind.from_db("default", list(fields), list(fields.values()))


def name(kind, **fields):
    return Lock.of(saved(kind, **fields)).name


ID = uuid.UUID("12345678-1234-5678-1234-567812345678")


@pytest.mark.parametrize(
    ("kind", "fields", "expected"),
    [
        (Plain, {"id": 7}, "rows.plain:7"),
        (Plain, {"id": "7"}, "rows.plain:7"),
        (PlainProxy, {"id": 7}, "rows.plain:7"),
        (Detail, {"plain_id": 7}, "rows.detail:7"),
        (Code, {"code": "DE"}, "rows.code:DE"),
        (Code, {"code": ""}, "rows.code:"),
        (Ticket, {"key": ID}, f"rows.ticket:{ID}"),
        (Ticket, {"key": ID.hex}, f"rows.ticket:{ID}"),
        (Line, {"order": 7, "part": 'a", "b'}, 'rows.line:["7", "a\\", \\"b"]'),
        (Line, {"order": "7", "part": "ü"}, 'rows.line:["7", "ü"]'),
    ],
)
def test_the_name_is_made_of_the_model_and_the_key(kind, fields, expected):
    assert name(kind, **fields) == expected


@pytest.mark.parametrize("code", ["x" * 600, "a\nb", "a ", "\ud800"], ids=ascii)
def test_a_key_that_no_name_can_have_is_written_as_a_digest(code):
    written = name(Code, code=code)
    assert written.startswith("rows.code#")
    assert len(written) == len("rows.code#") + 64 <= MAX_NAME
    assert written == name(Code, code=code) != name(Code, code=code + "!")


def test_keys_that_differ_have_names_that_differ():
    codes = ["a", "a ", " a", "A", "#a", ":a", "", "x" * 600, "x" * 601, '["a"]']
    assert len({name(Code, code=code) for code in codes}) == len(codes)
    lines = [("1", "2"), ("12", ""), ("1", '2", "'), ("1", "2,")]
    assert len({name(Line, order=int(a), part=b) for a, b in lines}) == len(lines)


def test_the_database_of_the_instance_is_not_part_of_it():
    here, there = Plain.from_db("default", ["id"], [7]), Plain.from_db("mariadb", ["id"], [7])
    assert Lock.of(here).name == Lock.of(there).name


def test_the_options_are_those_of_a_lock(local):
    lock = Lock.of(saved(Plain, id=7), timeout=0, description="the row")
    with lock:
        assert lock.info().description == "the row"
        assert Lock("rows.plain:7").held


@pytest.mark.parametrize(
    "instance",
    [Plain(), Plain(id=7), Ticket(), Line(order=7, part="a")],
    ids=["no pk", "integer", "uuid", "composite"],
)
def test_an_instance_that_is_not_saved_is_refused(instance):
    with pytest.raises(ValueError, match=r"instance must be saved: this rows\.\w+ with pk="):
        Lock.of(instance)


@pytest.mark.parametrize("wrong", [7, "rows.plain:7", Plain, Group.objects, None])
def test_what_is_no_row_is_refused(wrong):
    with pytest.raises(TypeError, match="instance must be a saved model instance or a queryset"):
        Lock.of(wrong)


def test_a_limit_is_for_querysets():
    with pytest.raises(TypeError, match="limit=3 is for a queryset"):
        Lock.of(saved(Plain, id=7), limit=3)


@pytest.mark.django_db
class TestQuerysets:
    @pytest.fixture(autouse=True)
    def groups(self, local):
        self.groups = [Group.objects.create(name=f"group {number}") for number in range(3)]

    def test_all_rows_are_locked_in_one_order(self):
        lock = Lock.of(Group.objects.order_by("-name"), limit=3, on_busy="raise")
        assert isinstance(lock, MultiLock)
        with lock:
            assert all(Lock.of(group).held for group in self.groups)
            names = [info.name for info in lock.info()]
            assert names == sorted(Lock.of(group).name for group in self.groups)
        assert not any(Lock.of(group).locked() for group in self.groups)

    def test_more_rows_than_the_limit_are_refused(self):
        with pytest.raises(ValueError, match="limit=2: .*auth.Group has more rows"):
            Lock.of(Group.objects.all(), limit=2)

    @pytest.mark.parametrize(
        ("limit", "error"), [(None, TypeError), (0, ValueError), ("3", TypeError)]
    )
    def test_a_limit_has_to_be_said(self, limit, error):
        with pytest.raises(error, match="limit"):
            Lock.of(Group.objects.all(), limit=limit)

    def test_the_rows_are_read_once(self, django_assert_num_queries):
        with django_assert_num_queries(1):
            lock = Lock.of(Group.objects.filter(name="group 1"), limit=3)
        later = Group.objects.create(name="group 1b")
        with lock:
            assert not Lock.of(later).held

    def test_no_rows_are_no_error(self):
        lock = Lock.of(Group.objects.none(), limit=3, on_busy="raise")
        with lock as entered:
            assert entered is lock
            assert (lock.held, lock.tokens, lock.locked()) == (True, {}, False)
            assert lock.remaining == float("inf")
            lock.verify()
        with lock.attempt() as acquired:
            assert acquired
        assert lock.acquire(timeout=1)
        lock.release()
        with lock.atomic():
            Group.objects.create(name="written")
        assert Group.objects.filter(name="written").exists()

    def test_wrong_options_are_refused_also_without_rows(self):
        with pytest.raises(ValueError, match="lease"):
            Lock.of(Group.objects.none(), limit=3, lease=0)

    def test_one_that_is_busy_is_named(self, in_thread):
        def attempt():
            with pytest.raises(LockBusy, match=Lock.of(self.groups[1]).name):
                MultiLock(*[Lock.of(group) for group in self.groups], on_busy="raise").__enter__()

        with Lock.of(self.groups[1]):
            in_thread(attempt)
        with pytest.raises(LockNotHeld):
            Lock.of(self.groups[1]).release()


def test_in_asyncio_the_rows_are_given_one_by_one(local):
    async def main():
        async with MultiLock(*[Lock.of(saved(Plain, id=number)) for number in (2, 1)]) as lock:
            return [info.name for info in await lock.ainfo()]

    assert asyncio.run(main()) == ["rows.plain:1", "rows.plain:2"]
