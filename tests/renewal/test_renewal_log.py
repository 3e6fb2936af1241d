"""A failing renewal is logged at once, then ever more rarely, and once when it works again."""

import logging
import math

import pytest

from distlock import Lock
from distlock.concurrency.clock import clock
from distlock.conf import locks
from tests.contract.watch import eventually, passed

ALIAS = "logged"


@pytest.mark.slow
@pytest.mark.once
def test_an_outage_takes_few_lines(backend_settings, settings, proxied, caplog):
    entries = backend_settings("postgresql", LEASE=12, RENEW=0.3)  # 8 tries in 3 s
    # An alias of its own: an outage of another test's backend may not be over yet.
    settings.DISTLOCK = {**entries, ALIAS: entries["default"]}
    proxy = proxied("postgresql")
    with caplog.at_level(logging.WARNING, "distlock"), Lock("stock", using=ALIAS) as lock:
        began = clock()
        proxy.refuse()
        eventually(lambda: said(caplog, "failed"))
        passed(3.2)
        proxy.heal()
        eventually(lambda: said(caplog, "works again"))
        most = math.log2(2 + (clock() - began) / 0.3)  # one line for twice as many tries
        lock.check()
    first, *others = said(caplog, "failed")
    assert first.startswith(f"renewal on {ALIAS!r} failed, will try again: ")
    assert 1 <= len(others) <= most
    assert all(" times, will try again: " in line for line in others)
    assert len(said(caplog, "works again")) == 1
    assert not any("\n" in line for line in said(caplog, ""))
    locks.close_all()


def said(caplog, what):
    start = f"renewal on {ALIAS!r}"
    return [line for line in caplog.messages if line.startswith(start) and what in line]
