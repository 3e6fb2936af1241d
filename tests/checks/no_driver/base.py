"""Fails as Django's engine for PostgreSQL does."""

from django.core.exceptions import ImproperlyConfigured

try:
    import psycopg2  # noqa: F401
except ImportError:
    raise ImproperlyConfigured("Error loading psycopg2 or psycopg module")  # noqa: B904
