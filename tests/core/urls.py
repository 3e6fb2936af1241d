"""Views that tell what a lock taken in them is described by, for test_activity.py."""

import asyncio

from asgiref.sync import sync_to_async
from django.http import HttpResponse, StreamingHttpResponse
from django.urls import path, re_path

from distlock import Lock
from distlock.activity import activity


def described(**options):
    lock = Lock("in a request", **options)
    with lock:
        return lock.info().description


def show(request):
    return HttpResponse(described())


def given(request):
    return HttpResponse(described(description="given"))


def inside(request):
    with activity("a step of it"):
        text = described()
    return HttpResponse(f"{text} | {described()}")


def fail(request):
    raise ZeroDivisionError


def stream(request):
    return StreamingHttpResponse(described() + "\n" for _ in range(2))


async def ashow(request):
    await asyncio.sleep(0)
    async with Lock("in an async request") as lock:
        text = (await lock.ainfo()).description
    return HttpResponse(f"{text} | {await sync_to_async(described)()}")


async def astream(request):
    async def lines():
        for _ in range(2):
            async with Lock("in an async stream") as lock:
                yield (await lock.ainfo()).description + "\n"

    return StreamingHttpResponse(lines())


left_behind = []


async def leave_behind(request):
    """Begin something that goes on after the request."""
    go_on = asyncio.Event()

    async def later():
        await go_on.wait()
        async with Lock("after a request") as lock:
            return (await lock.ainfo()).description

    left_behind.append((asyncio.create_task(later()), go_on))
    return HttpResponse()


urlpatterns = [
    path("given/", given),
    path("inside/", inside),
    path("fail/", fail),
    path("stream/", stream),
    path("async/", ashow),
    path("astream/", astream),
    path("leave-behind/", leave_behind),
    re_path("", show),
]
