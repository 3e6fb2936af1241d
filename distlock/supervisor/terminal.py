"""The terminal that a program is run at, as far as there is one."""

from __future__ import annotations

import os
import signal
import termios
from contextlib import suppress
from typing import Any

from distlock.supervisor.processes import bring_to_front


class Terminal:
    """The controlling terminal of this process. Without one, nothing of this does anything."""

    def __init__(self) -> None:
        self._modes: list[Any] | None = None
        try:
            self.descriptor: int | None = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            self.descriptor = None
        else:
            with suppress(termios.error):
                self._modes = termios.tcgetattr(self.descriptor)

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)

    def shows(self, group: int) -> bool:
        """Return whether a process group is in the foreground."""
        try:
            return self.descriptor is not None and os.tcgetpgrp(self.descriptor) == group
        except OSError:
            return False

    def move(self, from_group: int, to_group: int) -> None:
        """Hand the foreground from one group to another, if the first has it."""
        if self.descriptor is not None and self.shows(from_group):
            bring_to_front(self.descriptor, to_group)

    def reset_modes(self) -> None:
        """Undo what a program that was killed may have done to the terminal."""
        if self.descriptor is not None and self._modes and self.shows(os.getpgrp()):
            with suppress(termios.error):
                termios.tcsetattr(self.descriptor, termios.TCSADRAIN, self._modes)

    def stop_with(self, signum: int) -> None:
        """Stop this process and the others of its group, as the terminal would.

        Returns when they go on; at once where nobody could let them go on.
        """
        if signum == signal.SIGSTOP:
            signum = signal.SIGTSTP
        before = signal.signal(signum, signal.SIG_IGN)
        with suppress(PermissionError):
            os.killpg(os.getpgrp(), signum)  # the rest of a pipeline, the script around this
        signal.signal(signum, before if before is not None else signal.SIG_DFL)
        signal.raise_signal(signum)
