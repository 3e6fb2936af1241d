"""Loops that report how far they are."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sized
from typing import TypeVar

from distlock.conf import DEFAULT_ALIAS
from distlock.recipes.progress import Progress

T = TypeVar("T")


def track(
    iterable: Iterable[T],
    name: str,
    total: float | None = None,
    *,
    unit: str = "",
    using: str = DEFAULT_ALIAS,
) -> Iterator[T]:
    """Yield what an iterable has, and report under a name how far that is; see Progress.

    ``total`` is the length of the iterable, if it has one. A loop that is left before its end is
    reported as cancelled; use Progress itself where its errors are to be told.
    """
    length = len(iterable) if total is None and isinstance(iterable, Sized) else total
    return _tracked(iterable, Progress(name, length, unit=unit, using=using))


def atrack(
    iterable: AsyncIterable[T],
    name: str,
    total: float | None = None,
    *,
    unit: str = "",
    using: str = DEFAULT_ALIAS,
) -> AsyncIterator[T]:
    """See track(); for an ``async for``."""
    return _atracked(iterable, Progress(name, total, unit=unit, using=using))


def _tracked(iterable: Iterable[T], progress: Progress) -> Iterator[T]:
    with progress:
        for item in iterable:
            yield item
            progress.advance()


async def _atracked(iterable: AsyncIterable[T], progress: Progress) -> AsyncIterator[T]:
    async with progress:
        async for item in iterable:
            yield item
            progress.advance()
