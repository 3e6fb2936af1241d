"""The report of a progress, as it is read, and as a line on a terminal."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from distlock.backends.store import Record, Snapshot
from distlock.records.recipe_records import REPORT
from distlock.records.seats import Seats, as_datetime, owner_of
from distlock.types.lease import Owner

#: The greatest number that can be counted: rates of it are still numbers.
_GREATEST = 10**18
#: Characters of what a step or an error is called; the rest is left out.
_MOST_TEXT = 200
#: fields of a report that its record has as they are
_TOLD = (
    *("cancelling", "attempt", "done", "total", "unit", "step"),
    *("rate", "eta", "description", "error"),
)


@dataclass(frozen=True, slots=True)
class Report:
    """How far a piece of work is, as its worker has written it last.

    - ``state``: "running", "done", "failed", "cancelled", or "lost": its worker died, or was cut
      off for longer than its lease.
    - ``since``, ``at``: when it began, and when this was written, by the worker's wall clock.
    - ``owner``: the host, the process and the thread or task of the worker.
    - ``done``, ``total``, ``unit``: how many of how many are done; None if the total is not known.
    - ``step``: the present step.
    - ``description``: the activity in which it began, see distlock.activity.
    - ``token``: distinguishes its worker from others; None if that is gone.
    - ``cancelling``: whether it was asked to end.
    - ``attempt``: the number of workers that have reported under this name.
    - ``rate``, ``eta``: units per second, and seconds left, by the worker's clock; None if unknown.
    - ``error``: the error of a failed one.
    """

    name: str
    using: str
    state: str
    owner: Owner
    since: datetime
    at: datetime
    token: int | None
    cancelling: bool
    attempt: int
    done: float
    total: float | None
    unit: str
    step: str
    rate: float | None
    eta: float | None
    description: str
    error: str

    @property
    def part(self) -> float | None:
        """How much of it is done, from 0 to 1; None if the total is not known."""
        return None if not self.total else min(self.done / self.total, 1.0)


def report_of(snapshot: Snapshot, name: str, using: str) -> Report | None:
    """Return the report that the records of a directory make, None if there is none."""
    record = snapshot.records.get(REPORT)
    if record is None:
        return None
    said, alive = record.value, reporter_of(snapshot)
    state = "lost" if said["state"] == "running" and alive is None else said["state"]
    since, at = as_datetime(said["since"]), as_datetime(said["at"])
    token, told = None if alive is None else alive.created, {key: said[key] for key in _TOLD}
    return Report(name, using, state, owner_of(record), since, at, token, **told)


def reporter_of(snapshot: Snapshot) -> Record | None:
    """Return the record of the one who reports, if that lives."""
    return next(iter(Seats(snapshot).holders), None)


def bar(report: Report, width: int = 80) -> str:
    """Return a line of text for a terminal that shows a ``report``, ``width`` columns at most.

    ``import  48% [#########           ] 480/1000 rows, 12.3/s, 0:00:42 left: prices``
    """
    part, unit = report.part, f" {report.unit}" if report.unit else ""
    of = "" if report.total is None else f"/{_short(report.total)}"
    tail = f" {_short(report.done)}{of}{unit}"
    if report.state != "running":
        tail += f", {report.state}{': ' if report.error else ''}{report.error}"
    else:
        tail += "" if report.rate is None else f", {_short(report.rate)}/s"
        if report.eta is not None:
            tail += f", {timedelta(seconds=int(min(report.eta, 10**9)))} left"
        tail += f": {report.step}" if report.step else ""
    head = report.name if part is None else f"{report.name} {part:4.0%}"
    columns = min(width - len(head) - len(tail) - 3, 40)
    if part is None or columns < 5:
        return f"{head}{tail}"[:width]
    return f"{head} [{'#' * int(part * columns):{columns}}]{tail}"


def _short(number: float) -> str:
    return f"{number:.1f}" if isinstance(number, float) and number < 1000 else f"{number:.0f}"


def checked_number(argument: str, number: object) -> float:
    """Return how many of something; TypeError or ValueError that names the argument for others."""
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise TypeError(f"{argument} must be a number, not {number!r}")
    if not 0 <= number <= _GREATEST:
        raise ValueError(f"{argument} must be at least 0 and at most 10**18, got {number!r:.40}")
    return number


def shown_text(argument: str, text: object) -> str:
    """Return the beginning of a text for people, without characters that do not print.

    TypeError if it is not a text.
    """
    if not isinstance(text, str):
        raise TypeError(f"{argument} must be a str, not {text!r}")
    shown = "".join(character if character.isprintable() else " " for character in text)
    return shown if len(shown) <= _MOST_TEXT else shown[: _MOST_TEXT - 1] + "…"
