"""The task that sweeps, found by Celery's ``autodiscover_tasks()``."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict

from celery import shared_task
from celery.exceptions import SoftTimeLimitExceeded

from distlock import audit
from distlock.concurrency.reentry import refuse_reentry
from distlock.conf import locks
from distlock.exceptions import BodyEnded


@shared_task(name="distlock.sweep", ignore_result=True)  # type: ignore[untyped-decorator,unused-ignore]
def sweep(using: Collection[str] | None = None) -> dict[str, dict[str, int]]:
    """Free expired locks and remove old rows and nodes, as ``manage.py locks sweep`` does.

    ``using`` names the backends; without it, all are swept. Returns for each how many leases had
    expired and how many rows or nodes were removed. If a backend does not answer, the others are
    swept all the same; the last such error is raised at the end.
    """
    refuse_reentry()
    swept = {}
    failure: Exception | None = None
    for alias in locks if using is None else using:
        try:
            swept[alias] = asdict(audit.sweep(locks[alias]))
        except (BodyEnded, SoftTimeLimitExceeded):
            raise
        except Exception as error:
            failure = error
    if failure is not None:
        raise failure
    return swept
