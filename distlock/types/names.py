"""What may be the name of a lock, of an owner, or a description."""

from __future__ import annotations

import unicodedata

#: The column's width; four bytes a character still fit the index of every supported database.
MAX_NAME = 564
MAX_OWNER = 200
MAX_DESCRIPTION = 1024

#: Control characters, and halves of surrogate pairs, which no database can store.
_REFUSED = frozenset({"Cc", "Cs"})


def checked_name(name: object) -> str:
    """Return ``name`` if a lock may be called so; TypeError or ValueError otherwise."""
    return _checked("name", name, MAX_NAME)


def checked_owner(owner: object) -> str:
    """Return ``owner`` if an owner may be called so; TypeError or ValueError otherwise."""
    return _checked("owner", owner, MAX_OWNER)


def checked_description(description: object) -> str:
    """Return ``description`` if it fits; it may be empty. TypeError or ValueError otherwise."""
    if description == "":
        return ""
    return _checked("description", description, MAX_DESCRIPTION, spaces=True)


def _checked(argument: str, value: object, longest: int, *, spaces: bool = False) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{argument} must be a str, not {value!r}")
    if not value:
        raise ValueError(f"{argument} must not be empty, got {value!r}")
    if len(value) > longest:
        raise ValueError(
            f"{argument} must have at most {longest} characters, got {len(value)}: {value[:40]!r}…"
        )
    if any(unicodedata.category(character) in _REFUSED for character in value):
        raise ValueError(f"{argument} must not contain control characters, got {value!r}")
    if not spaces and value != value.strip():
        raise ValueError(f"{argument} must not begin or end with space, got {value!r}")
    return str.__str__(value)  # an enumeration's member has a str() of its own
