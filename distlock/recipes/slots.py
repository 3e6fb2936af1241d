"""What tasks, commands and programs run under: a lock, or a slot of which there are so many."""

from __future__ import annotations

from typing import Any, Literal

from distlock.core.base_lock import BaseLock
from distlock.lock import Lock
from distlock.recipes.semaphore import Semaphore, checked_count

#: In place of a number: the one that was said last, for all, by ``manage.py locks resize``.
AGREED: Literal["agreed"] = "agreed"

#: At most so many at a time.
Slots = int | Literal["agreed"]


def checked_slots(option: str, slots: object, *, at_least: float | None) -> None:
    """Check a number of slots, or None for a lock; ``option`` is what the caller calls it.

    Raises TypeError or ValueError that names the option and its value.
    """
    if slots is None or slots == AGREED:
        pass
    elif isinstance(slots, str):
        raise ValueError(f"{option} must be a number or {AGREED!r}, not {slots!r}")
    else:
        checked_count(option, slots)
    if slots is not None and at_least is not None:
        raise ValueError(
            f"at_least={at_least!r} does not go with {option}={slots!r}: a slot that is left is"
            " free at once"
        )


def lock_or_slot(
    name: str, slots: Slots | None, *, at_least: float | None = None, **options: Any
) -> BaseLock:
    """Return a Lock; with ``slots`` a Semaphore with so many seats, of which it takes one.

    ``options`` are those that both have; wrong ones are refused by name.
    """
    checked_slots("slots", slots, at_least=at_least)
    value = None if slots == AGREED else slots
    plain = slots is None
    lock = Lock(name, at_least=at_least, **options) if plain else Semaphore(name, value, **options)
    lock.name_is_filled_in = True
    return lock
