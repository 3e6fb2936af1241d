"""An etcd with more locks than can be looked at one by one while a page is waited for."""

from base64 import b64encode

import pytest

from distlock import Lock, locks
from distlock.types.query import LockQuery, Order

pytestmark = pytest.mark.slow

NUMBER = 15_000
#: Keys that are written in one request.
BATCH = 100
NAMES = [f"job:{number:05}" for number in range(NUMBER)]


@pytest.fixture
def crowd(etcd, backend_settings, settings):
    """So many that are as one which is held."""
    settings.DISTLOCK = backend_settings("etcd")
    with Lock("stock", lease=600):
        ((key, value),) = locks["default"].stored("stock").items()
        lease = etcd.keys(key)[key]["lease"]
        for start in range(0, NUMBER, BATCH):
            puts = [
                {"key": encoded(key.replace("stock", name)), "value": encoded(value)}
                for name in NAMES[start : start + BATCH]
            ]
            etcd.ask("kv/txn", success=[{"request_put": {**put, "lease": lease}} for put in puts])
        yield locks["default"]
    locks.close_all()


def encoded(text):
    return b64encode(text.encode()).decode()


def names(page):
    return [info.name for info in page.locks]


def test_the_admin_lists_them_in_time(crowd, in_time, url):
    page = in_time(url("list"))
    overview = page.context["overview"]
    assert [card.alias for card in overview.silent] == []
    assert [row.info.name for row in overview.rows] == NAMES[:50]
    assert f"{NUMBER + 1} names are too many to look at each lock" in page.content.decode()
    page = in_time(url("list"), {"q": "stock", "order": "age"})
    assert [row.info.name for row in page.context["overview"].rows] == ["stock"]
    last = crowd.page(LockQuery(backwards=True, size=3))
    assert names(last) == [*NAMES[-2:], "stock"]
    assert names(crowd.page(LockQuery(order=Order.AGE))) == []
