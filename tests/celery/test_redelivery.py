"""Redis delivers a message again that was not acknowledged in its ``visibility_timeout``."""

import pytest

from tests.celery.app import app
from tests.celery.stage import LIMIT, cue, published, silence
from tests.celery.tasks import BACKENDS, OF
from tests.contract.watch import eventually

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def broker_url(redis):
    """A database of Redis from which no other worker takes back what is not acknowledged."""
    return redis.url.rpartition("/")[0] + "/2"


@pytest.fixture(scope="module")
def worker(start_worker, broker_url):
    """A worker whose messages come again after a second."""
    options = {
        "visibility_timeout": 1,
        "unacked_restore_interval": 0.2,
        "unacked_restore_throttle": 1,
    }
    conf = {"broker_url": broker_url, "broker_transport_options": options}
    return start_worker("impatient", "prefork", 4, **conf).ready()


@pytest.mark.slow
def test_the_second_delivery_waits_for_the_first(worker, broker_url, key):
    results = {}
    for using in BACKENDS:
        with app.connection_for_write(broker_url) as connection:
            results[using] = OF[using].late.apply_async(
                (f"{key}-{using}",), queue=worker.queue, connection=connection
            )
    for using, result in results.items():
        where = f"{key}-{using}"
        published(f"{where}:started")
        eventually(lambda: worker.log.count(f"[{result.id}] received") >= 2)  # noqa: B023
        assert silence(f"{where}:started")
        cue(f"{where}:end", 9)
        published(f"{where}:started")
        assert result.get(timeout=LIMIT) == where
