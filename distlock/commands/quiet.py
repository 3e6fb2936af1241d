"""Keeps what drivers log out of what a command prints."""

from __future__ import annotations

import logging


def quiet_drivers() -> None:
    """Let kazoo's log lines go to stderr only if the project logs there.

    It logs every attempt to connect, and Python prints the warnings of a logger that nobody has
    configured. The command says itself what came of the attempts.
    """
    kazoo = logging.getLogger("distlock.zookeeper")
    if not kazoo.handlers:
        kazoo.addHandler(logging.NullHandler())
