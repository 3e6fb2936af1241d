"""Use of the public API, checked by mypy in test_typing.py and never run."""

from typing import Any, assert_type

from django.core.serializers.json import DjangoJSONEncoder
from django.db import models
from django.http import HttpRequest, HttpResponse
from django.urls import path

from distlock import Holder, Lock, LockBusy, LockLost, locks
from distlock.celery import LockedResult, LockedTask, locked_task
from distlock.commands import LockedCommand
from distlock.fencing import FencedModel, FencedQuerySet
from distlock.middleware import LockErrorMiddleware, error_response
from distlock.recipes import (
    Config,
    CountDownLatch,
    Counter,
    MultiLock,
    Queue,
    RateLimiter,
    RWLock,
    Semaphore,
    Value,
)
from distlock.signals import lock_lost
from distlock.types.lease import Lease, LockInfo, State, SweepResult
from distlock.views import leads, ready
from locksite.shop.models import Event


def tell(lease: Lease) -> None:
    print(lease.name)


def in_sync_code() -> int:
    with Lock("invoice:42", timeout=10, on_lost=tell) as lock:
        assert_type(lock, Lock)
        lock.check()
        lock.verify()
        assert_type(lock.held, bool)
        assert_type(lock.locked(), bool)
        assert_type(lock.acquire(), bool)
        assert_type(lock.acquire(False), bool)
        assert_type(lock.acquire(timeout=2.5), bool)
        info = lock.info()
        assert_type(info, LockInfo)
        assert_type(info.state, State)
        token: int = lock.token
        remaining: float = lock.remaining
        print(remaining)
        return token


def with_several_locks() -> None:
    with MultiLock("stock", RWLock("prices").reader(), Semaphore("mailer", 3), timeout=3) as lock:
        assert_type(lock, MultiLock)
        assert_type(lock.tokens, dict[tuple[str, ...], int])
        assert_type(lock.info(), tuple[LockInfo, ...])
        assert_type(lock.remaining, float)
        assert_type(lock.acquire(blocking=False), bool)


@MultiLock("account:{payer}", "account:{payee}")
async def transfer(payer: int, payee: int) -> bool:
    return True


def in_a_transaction() -> None:
    with Lock("stock").atomic():
        pass
    with Lock("stock").atomic(using="other"):
        pass


async def in_async_code() -> None:
    async with Lock("feed", using="local", lease=5, renew=False, owner="order-42") as lock:
        assert_type(lock, Lock)
        assert_type(await lock.aacquire(timeout=1), bool)
        await lock.arelease()
        await lock.averify()
        await lock.aextend(60)
        assert_type(await lock.alocked(), bool)
        assert_type(await lock.ainfo(), LockInfo)
        assert_type(await lock.aforce_release(7), bool)


@Lock("report:{account_id}", on_busy="raise")
def report(account_id: int, *, kind: str = "daily") -> str:
    return f"{account_id}{kind}"


@Lock("report:{account_id}")
async def areport(account_id: int) -> str:
    return str(account_id)


@Lock("nightly", on_busy="skip", busy_result="later", reentrant=False)
def nightly() -> str:
    return "done"


@RateLimiter("sms:{country}", 30, 60, on_busy="skip")
async def remind(country: str) -> int:
    return len(country)


async def counts(limiter: RateLimiter, latch: CountDownLatch, counter: Counter) -> None:
    assert_type(limiter.acquire(2, timeout=3), bool)
    assert_type(await limiter.aacquire(blocking=False), bool)
    with limiter.attempt() as acquired:
        assert_type(acquired, bool)
    async with limiter:
        assert_type(await remind("nz"), int)
    assert_type(latch.count_down(2), int)
    assert_type(await latch.await_(3), bool)
    assert_type(counter.add(), int)
    assert_type(await counter.aget(), int)
    assert_type(counter.value, int)


async def attempts(lock: Lock) -> None:
    with lock.attempt() as acquired:
        assert_type(acquired, bool)
    async with lock.attempt() as acquired:
        assert_type(acquired, bool)


def rows(event: Event) -> None:
    assert_type(Lock.of(event, timeout=5), Lock)
    assert_type(Lock.of(Event.objects.all(), limit=3), MultiLock)


async def decorated() -> None:
    assert_type(nightly(), str)
    assert_type(report(7, kind="x"), str)
    assert_type(await areport(7), str)


def failures() -> None:
    try:
        report(1)
    except LockBusy as error:
        assert_type(error.holder, Holder | None)
    except LockLost:
        pass


def backends() -> None:
    backend = locks["default"]
    assert_type(backend.sweep(), SweepResult)
    assert_type(backend.force_release("a", 7), Lease | None)
    for info in backend.list("invoice:"):
        assert_type(info, LockInfo)


def fenced(token: int) -> None:
    events = Event.objects.filter(title="x")
    assert_type(events, FencedQuerySet[Event])
    assert_type(events.exclude(pk=1).fenced_update(token, title="y"), int)
    assert_type(Event.objects.fenced_update(token), int)


class Stock(FencedModel):
    count = models.IntegerField()

    objects = FencedQuerySet.as_manager()

    class Meta:
        app_label = "typed"


async def fenced_by_a_manager_of_its_own(token: int) -> None:
    assert_type(Stock.objects.fenced_update(token, count=7), int)
    assert_type(Stock.objects.filter(pk=1).exclude(count=2).fenced_update(token), int)
    assert_type(Stock.objects.get(pk=1), Stock)
    assert_type(await Stock.objects.using("other").afenced_update(token), int)


@locked_task(lock="report:{account_id}", on_busy="skip", on_lost="terminate", max_retries=3)
def write(account_id: int, *, kind: str = "daily") -> str:
    return f"{account_id}{kind}"


@locked_task(bind=True, queueing_lock=lambda account_id: f"report:{account_id}")
def write_bound(self: LockedTask, account_id: int) -> str:
    assert_type(self.lock, Lock)
    return str(self.lock.token)


@locked_task(bind=True, lock="mail:{shop}", slots=3, on_busy="wait")
def mail(self: LockedTask, shop: str) -> int:
    assert_type(self.lock.held, bool)
    return self.lock.token


@locked_task(rate="30/m", rate_name="sms:{country}", on_busy="skip")
def send_sms(country: str) -> None: ...


@locked_task(lock="mail:{shop}", slots="agreed")
def mail_agreed(shop: str) -> None:
    print(shop)


class Mail(LockedCommand):
    lock_slots = 3

    def handle(self, **options: object) -> None:
        self.lock.check()


def queue() -> None:
    assert_type(write(7, kind="x"), str)
    assert_type(write.delay(7, kind="x"), LockedResult)
    assert_type(write.apply_async((7,), {"kind": "x"}, countdown=5), LockedResult)
    assert_type(write_bound(7), str)
    assert_type(write_bound.delay(account_id=7).skipped, bool)
    write_bound.delay_on_commit(7)
    (write.s(7) | write_bound.s()).apply_async()
    print(write.name, write.max_retries)
    assert_type(mail("main"), int)


def receiver(sender: Any, lease: Lease, using: str, **kwargs: Any) -> None: ...


lock_lost.connect(receiver)


def recipes_of_values(request: HttpRequest) -> HttpResponse | None:
    letters = Queue("letters", encoder=DjangoJSONEncoder)
    letters.put_on_commit({"to": "anna"}, timeout=5, using="default")
    mailer = Config("mailer", encoder=DjangoJSONEncoder)
    assert_type(mailer.get(max_age=60), Value)
    return error_response(LockBusy("busy"), request, json=True, retry_after=9)


async def recipes_of_values_in_a_task() -> None:
    assert_type(await Config("mailer").aget(7, stale=False, max_age=0), Value)


class Patient(LockErrorMiddleware):
    retry_after = 30


urlpatterns = [path("ready/", ready), path("leads/", leads, {"election": "scheduler"})]
