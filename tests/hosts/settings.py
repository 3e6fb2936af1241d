"""Settings of an application under a real host: those of the tests, with views of a test module."""

import json
import os

from tests.settings import *  # noqa: F403

ROOT_URLCONF = "tests.hosts.app"
ALLOWED_HOSTS = ["*"]
MIDDLEWARE = []
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "loggers": {"distlock": {"handlers": ["console"], "level": "INFO", "propagate": False}},
}
globals().update(json.loads(os.environ["HOST_SETTINGS"]))
