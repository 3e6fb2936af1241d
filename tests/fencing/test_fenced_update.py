"""``fenced_update()`` writes all of a queryset's rows, or none if a newer token has been there."""

from __future__ import annotations

import asyncio

import pytest
from django.db.models import Count, Exists, F, OuterRef

from distlock.exceptions import StaleToken
from distlock.fencing import BATCH
from tests.models import BoxSeat, Seat


class TestOneRow:
    def test_is_written_and_keeps_the_token(self, shop):
        seat = shop.seats.create()
        assert shop.seats.filter(pk=seat.pk).fenced_update(5, state="sold") == 1
        assert shop.states() == [("sold", 5)]

    def test_refuses_an_older_token(self, shop):
        seat = shop.seats.create(fence=6)
        with pytest.raises(StaleToken, match=r"tests.Seat .*newer.* 6; nothing .* under 5"):
            shop.seats.filter(pk=seat.pk).fenced_update(5, state="sold")
        assert shop.states() == [("free", 6)]

    def test_takes_the_same_token_again(self, shop):
        seat = shop.seats.create(fence=5)
        assert shop.seats.filter(pk=seat.pk).fenced_update(5, state="sold") == 1
        assert shop.seats.filter(pk=seat.pk).fenced_update(5, state="free") == 1

    def test_takes_a_newer_token(self, shop):
        shop.seats.create(fence=5)
        assert shop.seats.all().fenced_update(6, state="sold") == 1
        assert shop.states() == [("sold", 6)]

    def test_takes_the_greatest_token(self, shop):
        shop.seats.create()
        assert shop.seats.all().fenced_update(2**63 - 1) == 1

    def test_can_be_fenced_without_a_write(self, shop):
        shop.seats.create()
        assert shop.seats.all().fenced_update(5) == 1
        with pytest.raises(StaleToken):
            shop.seats.all().fenced_update(4, state="sold")

    def test_can_be_written_by_an_expression(self, shop):
        seat = shop.seats.create(number=3)
        shop.seats.filter(pk=seat.pk).fenced_update(5, number=F("number") + 1)
        assert shop.seats.get().number == 4

    def test_is_written_from_a_coroutine(self, shop):
        shop.seats.create()
        assert asyncio.run(shop.seats.all().afenced_update(5, state="sold")) == 1
        with pytest.raises(StaleToken):
            asyncio.run(shop.seats.all().afenced_update(4, state="free"))
        assert shop.states() == [("sold", 5)]


class TestSeveralRows:
    def test_are_all_written(self, shop):
        for number in range(3):
            shop.seats.create(number=number)
        assert shop.seats.filter(number__lt=2).fenced_update(5, state="sold") == 2
        assert shop.states() == [("sold", 5), ("sold", 5), ("free", 0)]

    def test_are_left_alone_if_one_is_newer(self, shop):
        for fence in (0, 6, 4):
            shop.seats.create(fence=fence)
        with pytest.raises(StaleToken, match="1 of the rows"):
            shop.seats.all().fenced_update(5, state="sold")
        assert shop.states() == [("free", 0), ("free", 6), ("free", 4)]

    def test_are_left_alone_if_the_filter_names_what_is_written(self, shop):
        for fence in (0, 6):
            shop.seats.create(fence=fence)
        with pytest.raises(StaleToken):
            shop.seats.filter(state="free").fenced_update(5, state="sold")
        assert shop.states() == [("free", 0), ("free", 6)]

    def test_outside_the_queryset_do_not_matter(self, shop):
        shop.seats.create(fence=6, state="broken")
        shop.seats.create()
        assert shop.seats.filter(state="free").fenced_update(5, state="sold") == 1

    def test_that_do_not_exist_are_no_error(self, shop):
        assert shop.seats.filter(pk=-1).fenced_update(5, state="sold") == 0
        assert shop.seats.none().fenced_update(5, state="sold") == 0
        assert shop.seats.filter(pk__in=[]).fenced_update(5, state="sold") == 0

    def test_are_reached_through_a_related_manager(self, shop):
        event = shop.events.create()
        shop.seats.create(event=event)
        shop.seats.create()
        assert event.seats.fenced_update(5, state="sold") == 1
        assert shop.states() == [("sold", 5), ("free", 0)]

    def test_are_written_in_any_order(self, shop):
        event = shop.events.create()
        shop.seats.create(event=event)
        assert shop.seats.order_by("event__open", "-number").fenced_update(5, state="sold") == 1

    def test_are_written_though_only_some_columns_are_read(self, shop):
        shop.seats.create()
        assert shop.seats.select_related("event").only("number").fenced_update(5) == 1
        assert shop.seats.values("number").fenced_update(6) == 1

    def test_are_read_anew_afterwards(self, shop):
        shop.seats.create()
        seats = shop.seats.all()
        assert [seat.state for seat in seats] == ["free"]
        seats.fenced_update(5, state="sold")
        assert [seat.state for seat in seats] == ["sold"]


class TestFiltersThatLookAtOtherRows:
    """A join or a subquery; what it sees may be what the update changes."""

    @pytest.fixture(params=["join", "subquery", "values", "aggregate", "distinct"])
    def free_neighbours(self, request, shop):
        def seats():
            free = shop.seats.filter(state="free")
            return {
                "join": shop.seats.filter(neighbour__state="free"),
                "subquery": shop.seats.filter(Exists(free.filter(pk=OuterRef("neighbour")))),
                "values": shop.seats.filter(neighbour__in=free.values("pk")),
                "aggregate": shop.seats.filter(neighbour__state="free")
                .annotate(count=Count("neighbour"))
                .filter(count__gt=0),
                "distinct": shop.seats.filter(neighbour__state="free").distinct(),
            }[request.param]

        return seats()

    def test_are_written(self, shop, free_neighbours):
        first = shop.seats.create()
        shop.seats.create(neighbour=first)
        assert free_neighbours.fenced_update(5, state="sold") == 1
        assert shop.states() == [("free", 0), ("sold", 5)]

    def test_are_left_alone_if_one_is_newer(self, shop, free_neighbours):
        first = shop.seats.create()
        shop.seats.filter(pk=first.pk).update(neighbour=first)
        shop.seats.create(neighbour=first, fence=6)  # out of the queryset once the first is sold
        with pytest.raises(StaleToken):
            free_neighbours.fenced_update(5, state="sold")
        assert shop.states() == [("free", 0), ("free", 6)]

    def test_may_find_nothing(self, shop, free_neighbours):
        shop.seats.create()
        assert free_neighbours.fenced_update(5, state="sold") == 0

    def test_may_find_more_than_one_statement_can_name(self, shop):
        event = shop.events.create()
        shop.seats.bulk_create(Seat(event=event) for _ in range(BATCH + 1))
        seats = shop.seats.filter(event__open=True)
        assert seats.fenced_update(5, state="sold") == BATCH + 1
        assert set(shop.states()) == {("sold", 5)}

    def test_are_all_or_nothing_over_several_statements(self, shop):
        event = shop.events.create()
        shop.seats.bulk_create(Seat(event=event) for _ in range(BATCH))
        shop.seats.create(event=event, fence=6)
        with pytest.raises(StaleToken):
            shop.seats.filter(event__open=True).fenced_update(5, state="sold")
        assert set(shop.states()) == {("free", 0), ("free", 6)}


class TestInheritedFence:
    """The model's parent has the fence, in a table of its own."""

    def test_guards_the_columns_of_both_tables(self, shop):
        shop.boxes.create()
        assert shop.boxes.all().fenced_update(5, state="sold", box="left") == 1
        assert (shop.boxes.get().box, shop.states()) == ("left", [("sold", 5)])
        with pytest.raises(StaleToken):
            shop.boxes.filter(box="left").fenced_update(4, state="free", box="")
        assert (shop.boxes.get().box, shop.states()) == ("left", [("sold", 5)])

    def test_can_be_raised_without_a_write(self, shop):
        shop.boxes.create()
        assert shop.boxes.all().fenced_update(5) == 1
        assert shop.states() == [("free", 5)]


class TestInstances:
    def test_begin_without_a_fence(self, shop):
        assert shop.seats.create().fence == 0

    def test_do_not_lower_the_fence_when_they_are_saved(self, shop):
        seat = shop.seats.create()
        shop.seats.all().fenced_update(5, state="sold")
        seat.number = 7
        seat.save()
        row = shop.seats.get()
        assert (row.number, row.fence) == (7, 5)

    def test_of_a_child_do_not_either(self, shop):
        seat = shop.boxes.create()
        shop.seats.all().fenced_update(5)
        seat.save()
        assert shop.boxes.get().fence == 5


class TestArguments:
    @pytest.fixture
    def kind(self):
        return "sqlite"

    @pytest.mark.parametrize("token", [None, True, False, "5", 5.0, b"5"])
    def test_what_is_no_integer_is_no_token(self, shop, token):
        with pytest.raises(TypeError, match=f"token must be an int, not {token!r}"):
            shop.seats.all().fenced_update(token, state="sold")

    @pytest.mark.parametrize("token", [-1, 2**63])
    def test_what_no_column_can_hold_is_no_token(self, shop, token):
        with pytest.raises(ValueError, match=f"token must be .*, got {token}"):
            shop.seats.all().fenced_update(token, state="sold")

    def test_the_fence_is_not_written_by_hand(self, shop):
        with pytest.raises(TypeError, match="fence is written by fenced_update"):
            shop.seats.all().fenced_update(5, fence=9)

    def test_a_column_may_be_called_token(self, shop):
        with pytest.raises(Exception, match="Seat has no field named 'token'"):
            shop.seats.all().fenced_update(5, token=9)

    def test_slices_are_refused_as_update_does(self, shop):
        with pytest.raises(TypeError, match="slice"):
            shop.seats.all()[:1].fenced_update(5, state="sold")

    def test_unions_are_refused_as_update_does(self, shop):
        with pytest.raises(Exception, match="union"):
            shop.seats.union(shop.seats.all()).fenced_update(5, state="sold")

    def test_distinct_columns_are_refused_as_update_does(self, shop):
        with pytest.raises(TypeError, match="distinct"):
            shop.seats.distinct("number").fenced_update(5, state="sold")

    def test_templates_cannot_call_it(self):
        assert Seat.objects.all().fenced_update.alters_data
        assert Seat.objects.fenced_update.alters_data

    def test_the_field_is_not_for_forms(self):
        field = Seat._meta.get_field("fence")
        assert (field.editable, field.default) == (False, 0)
        assert BoxSeat._meta.get_field("fence").model is Seat
