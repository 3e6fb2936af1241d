"""Fails as Django's own engines do."""

from django.core.exceptions import ImproperlyConfigured

raise ImproperlyConfigured("Error loading the driver.\nDid you install it?")
