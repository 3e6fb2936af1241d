"""Settings of a program that has imported multiprocessing before distlock, as many do."""

import multiprocessing.util  # noqa: F401

from tests.settings import *  # noqa: F403
