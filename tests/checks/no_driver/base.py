"""Fails as Django's engine for PostgreSQL does where its driver is not installed."""

from django.core.exceptions import ImproperlyConfigured

try:
    raise ModuleNotFoundError("No module named 'psycopg2'", name="psycopg2")
except ImportError:
    raise ImproperlyConfigured("Error loading psycopg2 or psycopg module")  # noqa: B904
