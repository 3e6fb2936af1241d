"""The site's settings; what depends on the place it runs in comes from the environment.

- ``DATABASE_URL``: ``sqlite:///…``, ``mysql://…`` or ``postgres://…`` (a file in this folder)
- ``LOCKS``: which entry of ``LOCK_BACKENDS`` below keeps the locks (``database``)
- ``ZOOKEEPER``: the servers of ``LOCKS=zookeeper``, as ``host:port,host:port`` (``127.0.0.1:2181``)
- ``ETCD``: the servers of ``LOCKS=etcd``, as ``host:port,host:port`` (``127.0.0.1:2379``)
- ``LEASE``: seconds for which a process that dies keeps others out of its locks (30); ZooKeeper has
  sessions instead
- ``TIMEOUT``: seconds that the database gets for one answer about locks (5)
- ``CELERY_BROKER_URL``, ``CELERY_RESULT_BACKEND``: as of Celery (files in ``CELERY_FOLDER``)
- ``CELERY_FOLDER``: where Celery's messages and results are while they are files (``build/celery``)
- ``DEBUG``: 1 or 0 (1)
- ``SECRET_KEY``, ``ALLOWED_HOSTS``: needed for anything else than a look at the demo
"""

from __future__ import annotations

import os
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

from locksite.databases import database

BASE_DIR = Path(__file__).resolve().parent.parent

DEBUG = os.environ.get("DEBUG", "1") == "1"
# Known to everyone who can read this file: good for the demo and nothing else.
SECRET_KEY = os.environ.get("SECRET_KEY", "demo-only-" + "not-a-secret-" * 4)
ALLOWED_HOSTS = os.environ.get("ALLOWED_HOSTS", "127.0.0.1,localhost,[::1]").split(",")

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "distlock",
    "locksite.shop",
    "locksite.reports",
    "locksite.demo",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "locksite.urls"
WSGI_APPLICATION = "locksite.wsgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

DATABASES = {
    "default": database(os.environ.get("DATABASE_URL") or f"sqlite:///{BASE_DIR / 'db.sqlite3'}")
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# Where locks can be kept. Code says only `Lock("event:1")`; this setting decides where that is.
LOCK_BACKENDS = {
    # In the database above: nothing else has to run. This is what distlock does without any
    # setting, too.
    "database": {
        "BACKEND": "distlock.backends.database.DatabaseBackend",
        # A holder that dies keeps others out for at most this many seconds. One that lives
        # renews its lease three times as often, so a long job needs no long lease.
        "LEASE": float(os.environ.get("LEASE") or 30),
        "OPTIONS": {
            "database": "default",  # an alias of DATABASES
            "timeout": float(os.environ.get("TIMEOUT") or 5),
        },
    },
    # In ZooKeeper, which frees the locks of a process when the session of the process ends.
    "zookeeper": {
        "BACKEND": "distlock.backends.zookeeper.ZooKeeperBackend",
        "LOCATION": os.environ.get("ZOOKEEPER") or "127.0.0.1:2181",
        "OPTIONS": {
            # seconds without contact; servers allow no less than 4 by default
            "session_timeout": float(os.environ.get("LEASE") or 4),
        },
    },
    # In etcd, which frees the locks of a process when their leases end.
    "etcd": {
        "BACKEND": "distlock.backends.etcd.EtcdBackend",
        "LOCATION": os.environ.get("ETCD") or "127.0.0.1:2379",
        "LEASE": float(os.environ.get("LEASE") or 30),  # as in the database
    },
    # In the memory of one process, for tests and development. Processes do not see one another's
    # locks here: `LOCKS=local manage.py demo --once` shows what comes of that.
    "local": {"BACKEND": "distlock.backends.local.LocalBackend"},
}

LOCKS = os.environ.get("LOCKS", "database")
if LOCKS not in LOCK_BACKENDS:
    raise ImproperlyConfigured(f"LOCKS is {LOCKS!r}; it must be one of {', '.join(LOCK_BACKENDS)}.")
DISTLOCK = {"default": LOCK_BACKENDS[LOCKS]}
if LOCKS == "zookeeper":
    # A hold there ends with its process, so what is queued needs another place.
    DISTLOCK["queue"] = LOCK_BACKENDS["database"]

# Celery needs no server here: messages and results are files. That is enough for one machine and a
# demo, and for nothing else.
CELERY_FOLDER = Path(os.environ.get("CELERY_FOLDER") or BASE_DIR / "build" / "celery")
CELERY_BROKER_URL = os.environ.get("CELERY_BROKER_URL", "files://")
CELERY_RESULT_BACKEND = os.environ.get("CELERY_RESULT_BACKEND", f"file://{CELERY_FOLDER}/done")
if CELERY_BROKER_URL == "files://":
    CELERY_BROKER_TRANSPORT_OPTIONS = {
        "data_folder_in": CELERY_FOLDER / "messages",
        "data_folder_out": CELERY_FOLDER / "messages",
        "control_folder": CELERY_FOLDER / "control",
        "processed_folder": CELERY_FOLDER / "done",
        "store_processed": True,  # in the same folder, so that a message is moved in one step
        "polling_interval": 0.1,
    }
CELERY_TIMEZONE = "UTC"

USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"
USE_I18N = True

STATIC_URL = "static/"
STATIC_ROOT = BASE_DIR / "build" / "static"
