"""Views that let errors of locks through."""

from django.contrib.auth.models import Group
from django.http import HttpResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.urls import path

from distlock import Lock, LockLost, LockUnavailable
from distlock.views import leads, ready

#: The name of a lock that a test holds elsewhere.
BUSY = "views:busy"


def busy(request):
    with Lock(BUSY, on_busy="raise"):
        return HttpResponse()


async def async_busy(request):
    async with Lock(BUSY, on_busy="raise"):
        return HttpResponse()


def unavailable(request):
    raise LockUnavailable("the server at 10.0.0.7 does not answer")


async def async_unavailable(request):
    raise LockUnavailable("the server at 10.0.0.7 does not answer")


def lost(request):
    raise LockLost("lost")


class Lazy:
    def __str__(self):
        raise LockUnavailable("while the page is rendered")


def rendered(request):
    return TemplateResponse(request, engines["django"].from_string("{{ lazy }}"), {"lazy": Lazy()})


def written(request):
    Group.objects.create(name="views:written")
    with Lock(BUSY, on_busy="raise"):
        return HttpResponse()


urlpatterns = [
    path("busy", busy),
    path("async-busy", async_busy),
    path("unavailable", unavailable),
    path("async-unavailable", async_unavailable),
    path("lost", lost),
    path("rendered", rendered),
    path("written", written),
    path("ready", ready),
    path("ready/<str:alias>", lambda request, alias: ready(request, using=[alias])),
    path("leads/<str:election>", leads),
]
