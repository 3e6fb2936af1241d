"""The ways in which calls become pieces of work of one thread, and what is done in them."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.pool import ThreadPool

from asgiref.sync import async_to_sync, sync_to_async
from django.core.signals import request_finished, request_started

from distlock import Lock
from distlock.activity import activity
from tests.contract.actors import PATIENCE


def take(**options):
    assert Lock("stock", **options).acquire(blocking=False)


def tries(**options):
    lock = Lock("stock", **options)
    if got := lock.acquire(blocking=False):
        lock.release()
    return got


# Each gives a function that makes a call as a piece of work, all of them on one thread.


@contextmanager
def executor():
    with ThreadPoolExecutor(1) as pool:
        yield lambda call: pool.submit(call).result(PATIENCE)


@contextmanager
def thread_pool():
    with ThreadPool(1) as pool:
        yield lambda call: pool.apply_async(call).get(PATIENCE)


@contextmanager
def marked():
    def run(call):
        with activity("a turn of a loop"):
            return call()

    yield run


@contextmanager
def requests():
    def run(call):
        request_started.send(None, environ={"PATH_INFO": "/", "REQUEST_METHOD": "GET"})
        try:
            return call()
        finally:
            request_finished.send(None)

    yield run


@contextmanager
def to_thread():
    with ThreadPoolExecutor(1) as pool:

        async def run(call):
            return await asyncio.get_running_loop().run_in_executor(pool, call)

        yield lambda call: asyncio.run(run(call))


@contextmanager
def to_async():
    async def run(call):
        return await sync_to_async(call)()

    yield async_to_sync(run)
