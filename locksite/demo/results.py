"""What a scenario of the demo has come to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the demo's table. ``system`` numbers what it shows, see CONTRIBUTING.md."""

    what: str
    expected: str
    seen: str
    ok: bool
    system: int | None = None
    problem: str = ""  # why nothing could be seen

    @classmethod
    def of(cls, what: str, expected: object, seen: object, system: int | None = None) -> Result:
        """Return a line that is right if what was seen is what was expected."""
        return cls(what, str(expected), str(seen), str(expected) == str(seen), system)
