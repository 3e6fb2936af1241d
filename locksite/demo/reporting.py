"""The shop's nightly report in the demo: schedulers queue it, a Celery worker writes it."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, timedelta

from locksite.demo.processes import ANSWER_TIMEOUT, END_TIMEOUT, PROJECT, WorkerFailed
from locksite.reports.models import Report


@contextmanager
def message_folder() -> Iterator[None]:
    """Give the demo's processes a folder of their own for Celery's messages."""
    with tempfile.TemporaryDirectory(prefix="distlock-demo-") as folder:
        os.environ["CELERY_FOLDER"] = folder
        try:
            yield
        finally:
            del os.environ["CELERY_FOLDER"]


@contextmanager
def unused_day() -> Iterator[date]:
    """Return a random day that has no report; a report of that day is deleted afterwards.

    The day is random because a demo that was killed may have left a queueing lock for its day.
    """
    day = date(1, 1, 1) + timedelta(days=random.randrange(1800 * 365))
    try:
        yield day
    finally:
        Report.objects.filter(day=day).delete()


def times_built(day: date, expected: int, worker: subprocess.Popen[bytes]) -> int:
    """Return how often the report was written, after waiting until that is as often as expected.

    Raises WorkerFailed if the Celery worker ends before.
    """
    ends = time.monotonic() + ANSWER_TIMEOUT * 2 / 3
    while (built := _built(day)) != expected and time.monotonic() < ends:
        if worker.poll() is not None:
            raise WorkerFailed(f"the Celery worker ended with exit code {worker.returncode}")
        time.sleep(0.1)
    return built


def _built(day: date) -> int:
    return Report.objects.filter(day=day).values_list("built", flat=True).first() or 0


@contextmanager
def celery_worker() -> Iterator[subprocess.Popen[bytes]]:
    """Run a Celery worker; it ends with this block, or with the demo."""
    process = subprocess.Popen(
        [sys.executable, "-m", "locksite.demo.celery_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        process_group=0,  # Ctrl-C is for the demo alone
        cwd=PROJECT,
        env={**os.environ, "DEBUG": "0"},
    )
    assert process.stdin is not None
    try:
        yield process
    finally:
        process.stdin.close()
        try:
            process.wait(2 * END_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
