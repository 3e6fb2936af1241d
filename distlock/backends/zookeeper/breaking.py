"""Breaks a hold from outside, in a way that its holder cannot miss."""

from __future__ import annotations

import time

from kazoo.exceptions import NoNodeError

from distlock.backends.zookeeper.requests import Delete
from distlock.backends.zookeeper.survey import Survey
from distlock.types.lease import Lease

#: Seconds between seeing a hold and breaking it. So a hold that is younger than ``YOUNG`` cannot
#: have been broken, and need not ask when it is released; older ones ask, and are told.
_PAUSE = 0.1
YOUNG = 0.05


def break_hold(survey: Survey, name: str, token: int, duration: float) -> Lease | None:
    """Delete the node that holds ``name`` under this token; return its lease, None if it is gone.

    ``duration`` is that of the lease, which the node does not tell.
    """
    found = survey.holder(name)
    if found is None or found[1].token != token:
        return None
    path, record = found
    time.sleep(_PAUSE)
    (deleted,) = survey.client.ask([Delete(path, -1)], survey.deadline)
    if not isinstance(deleted.error, NoNodeError):
        survey.client.checked(deleted)
    elif not deleted.repeated:  # else the first request, whose answer was lost, has deleted it
        return None
    return record.lease(name, path, duration)
