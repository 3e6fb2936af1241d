"""Whose body of a ``with`` statement it is that ends.

A generator or coroutine may begin it in one thread or task and be closed, or go on, in another.
"""

from __future__ import annotations

from types import CodeType, FrameType

from distlock.types.lease import Owner


class ActiveBlocks:
    """The owners that are in bodies of one Lock object, by the frames that these are in.

    Without a mutex: a body may be ended by the garbage collector, at any moment in any thread.
    """

    def __init__(self) -> None:
        # No frames, which would keep everything alive that they know. The same number may come
        # again, and is then found again with other code, or overwritten when its body begins.
        self._inside: dict[tuple[int, CodeType], list[Owner]] = {}

    def begin(self, frame: FrameType, owner: Owner) -> None:
        """Note that an owner enters a body in this frame."""
        key = id(frame), frame.f_code
        others = self._inside.get(key, [])
        self._inside[key] = [*(other for other in others if other == owner), owner]

    def end(self, frame: FrameType, current: Owner) -> Owner:
        """Return whose body in this frame ends; the current owner's, if none is known there."""
        key = id(frame), frame.f_code
        if key in self._inside:
            return self._pop(key) or current
        # An ExitStack, for one, enters and leaves in frames of its own.
        for key, owners in reversed(list(self._inside.items())):
            if current in owners:
                self._pop(key)
                break
        return current

    def _pop(self, key: tuple[int, CodeType]) -> Owner | None:
        owners = self._inside.pop(key, None)
        if not owners:
            return None
        if owners[1:]:
            self._inside[key] = owners[1:]
        return owners[0]
