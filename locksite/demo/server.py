"""The site's own small web server, for a look at it from this machine."""

from __future__ import annotations

import errno
import logging
from typing import Any

from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from django.core.wsgi import get_wsgi_application

HOST = "127.0.0.1"
USUAL_PORT = 8000


class QuietHandler(WSGIRequestHandler):
    """Answers without a line in the terminal for each request."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


def site_server(port: int | None) -> ThreadedWSGIServer:
    """Return a server bound to ``port``; None means 8000, or any free one if that is taken.

    Raises OSError if ``port`` was asked for and is taken.
    """
    try:
        server = ThreadedWSGIServer((HOST, USUAL_PORT if port is None else port), QuietHandler)
    except OSError as error:
        if port is not None or error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        server = ThreadedWSGIServer((HOST, 0), QuietHandler)
    server.set_app(StaticFilesHandler(get_wsgi_application()))
    # A visitor's mistakes are answered; the terminal is for what goes wrong with the site.
    logging.getLogger("django.request").setLevel(logging.ERROR)
    return server
