"""Views that use locks, for test_requests.py."""

import time

from django.contrib.auth.models import Group
from django.db import transaction
from django.http import HttpResponse
from django.urls import path

from distlock import Lock
from tests.databases import ALIASES


def write(request):
    Group.objects.using(ALIASES[request.GET["kind"]]).create(name=request.GET["name"])


def locked(request):
    """Write under a lock; the transaction of the request ends after the lock is left."""
    with Lock(request.GET["name"]):
        write(request)
    return HttpResponse("written")


def held(request):
    """Take a lock and keep it for the whole request."""
    lock = Lock(request.GET["name"], lease=60)
    lock.acquire()
    try:
        write(request)
        if "fail" in request.GET:
            raise ZeroDivisionError
        return HttpResponse(f"{lock.held} {lock.token}")
    finally:
        lock.release()


def atomic(request):
    with Lock(request.GET["name"]).atomic():
        write(request)
    return HttpResponse("written")


def exempt(request):
    return atomic(request)


for _alias in ALIASES.values():
    exempt = transaction.non_atomic_requests(using=_alias)(exempt)


async def alocked(request):
    async with Lock(request.GET["name"]) as lock:
        return HttpResponse(f"{lock.held} {lock.token}")


def adding(request):
    """Read a number under a lock, and write the next one; others come meanwhile."""
    database, name = ALIASES[request.GET["kind"]], request.GET["name"]
    with Lock(name):
        group = Group.objects.using(database).get(name__startswith=f"{name}:")
        value = int(group.name.rpartition(":")[2])
        time.sleep(0.1)
        Group.objects.using(database).filter(pk=group.pk).update(name=f"{name}:{value + 1}")
    time.sleep(0.2)
    return HttpResponse("added")


urlpatterns = [
    path("adding/", adding),
    path("locked/", locked),
    path("held/", held),
    path("atomic/", atomic),
    path("exempt/", exempt),
    path("async/", alocked),
]
