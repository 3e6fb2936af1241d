"""One hold as a form names it: which lock, where, and under which token."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from django.utils.translation import gettext as _

from distlock.types.lease import LockInfo
from distlock.types.names import MAX_NAME

#: Holds that can be released at once.
MOST = 100


def _can_be_a_name(text: str) -> bool:
    """Return whether a backend can have a lock of this name; JSON can say more than text."""
    return (
        0 < len(text) <= MAX_NAME
        and "\0" not in text
        and not any("\ud800" <= letter <= "\udfff" for letter in text)
    )


@dataclass(frozen=True, slots=True)
class Chosen:
    """A hold that someone has seen and ticked."""

    alias: str
    token: int
    name: str

    @classmethod
    def of(cls, info: LockInfo) -> Chosen:
        """Return what names the hold of a lock in use."""
        return cls(info.using, info.token or 0, info.name)

    @classmethod
    def read(cls, text: str) -> Chosen:
        """Understand what str() wrote; ValueError for anything else."""
        try:
            given = json.loads(text)
        except RecursionError:
            given = None
        match given:
            case [str(alias), int(token), str(name)] if _can_be_a_name(name):
                return cls(alias, int(token), name)
        raise ValueError(f"{text!r} names no hold")

    @classmethod
    def read_all(cls, texts: Iterable[str]) -> list[Chosen]:
        """Understand what a form says; ValueError, for people, if these are none or too many."""
        try:
            chosen = list(dict.fromkeys(map(cls.read, texts)))
        except ValueError as error:
            raise ValueError(_("The form was not understood. Please choose again.")) from error
        if not chosen:
            raise ValueError(_("No lock was chosen."))
        if len(chosen) > MOST:
            raise ValueError(_("At most %(most)d locks can be released at once.") % {"most": MOST})
        return chosen

    def __str__(self) -> str:
        return json.dumps([self.alias, self.token, self.name])
