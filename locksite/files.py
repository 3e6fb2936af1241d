"""Celery messages as files in a folder: kombu's transport, with each message there in one step.

kombu's own makes a file and then writes to it, so that a worker may read half a message.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from pathlib import Path
from typing import Any

from kombu.transport import TRANSPORT_ALIASES, filesystem

#: What broker addresses of this transport begin with.
SCHEME = "files"

TRANSPORT_ALIASES[SCHEME] = "locksite.files:Transport"


class Channel(filesystem.Channel):
    """See kombu's filesystem.Channel."""

    def _put(self, queue: str, payload: Any, **kwargs: Any) -> None:  # type: ignore[override]
        folder, name = Path(self.data_folder_out), str(uuid.uuid4())
        unseen = folder / f"{name}.new"  # not what any queue's messages are called
        unseen.write_text(json.dumps(payload))
        os.rename(unseen, folder / f"{time.time_ns():020}_{name}.{queue}.msg")


class Transport(filesystem.Transport):
    """See kombu's filesystem.Transport."""

    Channel = Channel
