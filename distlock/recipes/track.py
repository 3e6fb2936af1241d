"""Loops that report how far they are."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sized
from contextlib import nullcontext
from typing import Any, TypeVar

from django.utils.asyncio import async_unsafe

from distlock.conf import DEFAULT_ALIAS
from distlock.recipes.progress import Progress
from distlock.recipes.report import checked_number

T = TypeVar("T")


def track(
    iterable: Iterable[T],
    name: str | Progress,
    total: float | None = None,
    *,
    unit: str = "",
    using: str = DEFAULT_ALIAS,
) -> Iterator[T]:
    """Yield what an iterable has, and report how far that is: ``track(rows, "import")``.

    - ``name``: as of a Progress; or one that has begun, which then goes on after the loop.
    - ``total``: how many there are; by default the length of the iterable, if it has one.
    - ``unit``, ``using``: as of a Progress.

    Each one counts as done when the next one is asked for. A loop that is left before its end is
    reported as cancelled: use ``with Progress(...)`` where its errors are to be told.
    Raises Cancelled if somebody has asked the work to end.
    """
    progress, block = _prepared(iterable, name, total, unit, using)
    if block is progress:  # one that has begun needs nobody's answer here
        _refuse_in_event_loop()
    with block:
        for item in iterable:
            yield item
            progress.advance()


async def atrack(
    iterable: AsyncIterable[T],
    name: str | Progress,
    total: float | None = None,
    *,
    unit: str = "",
    using: str = DEFAULT_ALIAS,
) -> AsyncIterator[T]:
    """See track(); for an ``async for``."""
    progress, block = _prepared(iterable, name, total, unit, using)
    async with block:
        async for item in iterable:
            yield item
            progress.advance()


@async_unsafe("track() would block the event loop; use `async for … in atrack()`.")
def _refuse_in_event_loop() -> None:
    """Refuse to begin a progress that the caller's task would wait for."""


def _prepared(
    iterable: object, name: str | Progress, total: float | None, unit: str, using: str
) -> tuple[Progress, Any]:
    """Return a progress, and the block in which it reports."""
    if total is None and isinstance(iterable, Sized):
        total = len(iterable)
    if not isinstance(name, Progress):
        progress = Progress(name, total, unit=unit, using=using)
        return progress, progress
    if name.total is None and total is not None:
        name.total = checked_number("total", total)
    return name, nullcontext()
