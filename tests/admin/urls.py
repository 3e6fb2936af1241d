"""A site with an admin of its own beside the usual one, for test_sites.py."""

from django.contrib.admin import AdminSite
from django.urls import path

from distlock.admin import HeldLockAdmin
from distlock.models import HeldLock

site = AdminSite("ops")
site.register(HeldLock, HeldLockAdmin)

urlpatterns = [path("ops/", site.urls)]
