"""Pages of a queue's items, one item by its number, and dead letters in bulk."""

import queue as standard

import pytest

from distlock import locks
from distlock.recipes import Queue
from tests.recipes.every_kind import pytest_generate_tests  # noqa: F401 - pytest calls it
from tests.recipes.test_queue_abandoned import Cost, abandon, fill, take


def pages(queue, state, **how):
    """Return the bodies on each page."""
    found, after = [], None
    while True:
        page = queue.page(state, after=after, **how)
        found.append([item.body for item in page.items])
        after = page.after
        if after is None:
            return found


def bury(queue, bodies, reason=""):
    """Let these be dead letters."""
    for body in bodies:
        queue.put(body)
        queue.get().nack(reason=reason)
    return queue.dead(1000)


@pytest.fixture
def letters(using, name):
    return Queue(name, using=using, max_deliveries=1)


def test_what_is_ready_comes_in_pages_from_either_end(letters):
    fill(letters, 7)
    assert pages(letters, "ready", most=3) == [[0, 1, 2], [3, 4, 5], [6]]
    assert pages(letters, "ready", most=3, reverse=True) == [[6, 5, 4], [3, 2, 1], [0]]
    assert pages(letters, "ready", most=7) == [[*range(7)]]
    assert pages(letters, "dead") == pages(letters, "delivered") == [[]]


def test_an_abandoned_item_is_on_the_page_at_its_place(using, name):
    again = Queue(name, using=using)
    fill(again, 6)
    taken = take(again, 4)
    abandon(again, [taken[1], taken[3]])
    assert pages(again, "delivered", most=1) == [[0], [2]]
    assert pages(again, "ready", most=2) == [[1, 3], [4, 5]]
    assert pages(again, "ready", most=3, reverse=True) == [[5, 4, 3], [1]]


def test_dead_letters_come_in_pages_wherever_they_are(letters):
    bury(letters, ["a", "b"])
    fill(letters, 2)
    abandoned = [letters.get(), letters.get()]
    abandon(letters, abandoned)
    letters.put("c")
    letters.get().nack()
    assert pages(letters, "dead", most=2) == [["a", "b"], [0, 1], ["c"]]
    assert pages(letters, "dead", most=4, reverse=True) == [["c", 1, 0, "b"], ["a"]]


def test_the_body_and_the_reason_are_searched(letters):
    bury(letters, [{"to": "Ädä"}, ["x"]], reason="SMTP says no")
    bury(letters, [7])
    assert pages(letters, "dead", matching="ÄDÄ") == [[{"to": "Ädä"}]]
    assert pages(letters, "dead", matching="smtp") == [[{"to": "Ädä"}, ["x"]]]
    assert pages(letters, "dead", matching=str(letters.dead()[2].id)) == [[7]]
    assert pages(letters, "dead", matching="nowhere") == [[]]


def test_a_search_ends_in_time_and_goes_on_from_there(letters):
    at_once = locks["default"].store.most_filtered
    fill(letters, at_once + 20)
    letters.put("needle")
    page = letters.page("ready", matching="need", timeout=1e-9)
    assert (page.items, page.looked_at) == ((), at_once)
    rest = letters.page("ready", matching="need", after=page.after)
    assert ([one.body for one in rest.items], rest.looked_at, rest.after) == (["needle"], 21, None)


def test_an_item_is_found_by_its_number(letters):
    first, second, third = (letters.put(body) for body in "abc")
    letters.get().nack(reason="why")
    delivery = letters.get()
    dead, taken, ready = map(letters.find, (first, second, third))
    assert [one.state for one in (dead, taken, ready)] == ["dead", "delivered", "ready"]
    assert [one.item.body for one in (dead, taken, ready)] == [*"abc"]
    assert (dead.item.reason, taken.delivery.token) == ("why", delivery.token)
    delivery.ack()
    assert letters.find(second) is None


def test_a_delayed_item_says_so(using, name):
    later = Queue(name, using=using)
    number = later.put("a")
    later.get().nack(delay=60)
    assert later.find(number).state == "delayed"
    assert pages(later, "delivered") == [["a"]]


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"state": "gone"}, "state must be one of ready, delivered, dead, not 'gone'"),
        ({"most": 0}, "most must be"),
        ({"after": "1"}, "after must be"),
        ({"matching": 7}, "matching must be"),
        ({"timeout": 0}, "timeout must be"),
    ],
)
@pytest.mark.parametrize("using", ["default"])
def test_wrong_arguments_are_named(local, using, how, error):
    with pytest.raises((TypeError, ValueError), match=error):
        Queue("x", using=using).page(**{"state": "ready", **how})


def test_several_dead_letters_are_put_back_at_once(letters):
    buried = bury(letters, "abc")
    letters.retry(buried[0])
    assert letters.retry_many(buried) == 2
    assert pages(letters, "ready") == [["a", "b", "c"]]
    assert letters.retry_many(buried) == 0


def test_putting_back_says_how_many_had_room(letters):
    buried = bury(letters, "abcd")
    letters.resize(3)
    assert letters.retry_many(buried) == 3
    with pytest.raises(standard.Full):
        letters.retry_many(buried[3:])
    assert pages(letters, "dead") == [["d"]]


def test_dead_letters_are_discarded(letters):
    buried = bury(letters, "abc")
    letters.put("d")
    abandon(letters, [letters.get()])
    last = letters.dead()[-1]
    assert letters.discard([buried[0], buried[2], last]) == 3
    assert letters.discard(buried) == 1
    assert letters.info().dead == 0


def test_a_page_costs_the_same_however_many_there_are(letters, monkeypatch):
    cost, costs = Cost(monkeypatch, locks[letters.using].store), []
    for _ in range(2):
        fill(letters, 60)
        with cost.counted():
            letters.page("ready", 5, reverse=True)
        costs.append((cost.requests, cost.records))
    assert costs[0] == costs[1]
    assert costs[0][1] == 6
