"""The tasks that the workers of the tests run."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace

from celery.exceptions import Ignore, Reject
from kombu.exceptions import OperationalError
from pydantic import BaseModel

from distlock import Lock, LockBusy, LockUnavailable
from distlock.celery import LockedTask, locked_task
from distlock.recipes import track
from locksite.demo.models import Entry
from tests.celery.app import app
from tests.celery.stage import LIMIT, client, publish, wait_for_cue

#: The aliases of the lock backends that the tests run on.
BACKENDS = ("mariadb", "zookeeper")
#: One that some of the tests run on, too; it has the queueing locks of its tasks as well.
ETCD = "etcd"
#: The one that has the queueing locks of all others: ZooKeeper cannot keep them.
QUEUEING = "mariadb"
#: The alias of one that some workers reach only through a network that can break.
FRAGILE = "fragile"
#: The alias of one in ZooKeeper whose sessions outlive their processes for long.
PATIENT = "patient"


def act(task, key, **what):
    """Say that the task runs, and under which token; end when the test says so."""
    token = task.lock.token if type(task).lock_name else None
    publish(f"{key}:started", id=task.request.id, token=token, pid=os.getpid(), **what)
    wait_for_cue(f"{key}:end")
    return key


class SlowEvents(LockedTask):
    """A task whose events wait for the broker."""

    def send_event(self, *args, **fields):
        publish(f"{self.request.args[0]}:started")
        time.sleep(LIMIT)


def breakable(task, args, kwargs, options):
    """Fail in the place of the broker, once for each time that it was told to."""
    if client().lpop(f"cue:{args[0]}:break"):
        publish(f"{args[0]}:broken")
        raise OperationalError("the broker does not answer")


def queueing_of(using):
    """Return the alias that has the queueing locks of tasks whose locks are in ``using``."""
    return using if using == ETCD else QUEUEING


def tasks_of(using):
    """Return the tasks whose locks are in one backend."""

    def task(name, **options):
        if "queueing_lock" in options:
            options.setdefault("queueing_using", queueing_of(using))
        return locked_task(name=f"{using}.{name}", using=using, bind=True, **options)

    @task("skip", lock="{key}", on_busy="skip")
    def skip(self, key):
        return act(self, key)

    @task("skip_given", lock="{key}", on_busy="skip", busy_result={"skipped": True})
    def skip_given(self, key):
        return act(self, key)

    @task("refuse", lock="{key}", on_busy="raise")
    def refuse(self, key):
        return act(self, key)

    @task("retry", lock="{key}", busy_delay=0.05, busy_delay_max=0.3, max_retries=0)
    def retry(self, key):
        return act(self, key, retries=self.request.retries)

    @task("retry_twice", lock="{key}", busy_delay=0.05, busy_limit=2)
    def retry_twice(self, key):
        return act(self, key)

    @task("wait", lock="{key}", on_busy="wait", timeout=20)
    def wait(self, key):
        return act(self, key)

    @task("wait_briefly", lock="{key}", on_busy="wait", timeout=0.2)
    def wait_briefly(self, key):
        return act(self, key)

    @task(
        "late",
        lock="{key}",
        queueing_lock="{key}",
        until="finished",
        on_busy="wait",
        acks_late=True,
        reject_on_worker_lost=True,
    )
    def late(self, key):
        return act(self, key)

    @task("late_wait", lock="{key}", queueing_lock="{key}", on_busy="wait", acks_late=True)
    def late_wait(self, key):
        return act(self, key)

    # Where a lease has a length of its own, its end must not be what frees the lock.
    @task("log_retrying", lock="{key}", busy_delay=0.02, busy_delay_max=0.2, busy_limit=None)
    def log_retrying(self, key, trace):
        log(self, key, trace)

    @task("log_waiting", lock="{key}", on_busy="wait")
    def log_waiting(self, key, trace):
        log(self, key, trace)

    @task("minute", lock="{key}", on_busy="skip", at_least=60)
    def minute(self, key):
        return "done"

    @task("doomed_minute", lock="{key}", at_least=60,
          **({"lease": 600} if using == "mariadb" else {}))  # fmt: skip
    def doomed_minute(self, key):
        return act(self, key)

    @task("slow_event", lock="{key}", base=SlowEvents)
    def slow_event(self, key):
        return key

    @task("doomed", lock="{key}", queueing_lock="{key}", until="finished", on_busy="wait",
          **({"lease": 600} if using == "mariadb" else {}))  # fmt: skip
    def doomed(self, key):
        return act(self, key)

    @task("watchful", lock="{key}", on_lost="terminate")
    def watchful(self, key, nap):
        publish(f"{key}:started", token=self.lock.token)
        try:
            while True:  # it never asks the lock
                time.sleep(nap)
        finally:
            publish(f"{key}:ended")

    @task("queued", queueing_lock="{key}")
    def queued(self, key, what="return"):
        return act(self, key)

    @task("queued_whole", queueing_lock="{key}", until="finished", default_retry_delay=0)
    def queued_whole(self, key, what="return"):
        act(self, key, retries=self.request.retries)
        if what == "retry" and not self.request.retries:
            raise self.retry()
        if what == "replace":
            raise self.replace(self.si(key))
        return end(key, what)

    @task("auto", queueing_lock="{key}", until="finished", autoretry_for=(LookupError,),
          default_retry_delay=0, retry_kwargs={"max_retries": 1, "countdown": 0})  # fmt: skip
    def auto(self, key):
        act(self, key, retries=self.request.retries)
        raise LookupError(key)

    @task("requeued", queueing_lock="{key}", until="finished", acks_late=True)
    def requeued(self, key):
        act(self, key)
        if not self.request.delivery_info["redelivered"]:
            raise Reject(key, requeue=True)
        return key

    @task("queued_again", queueing_lock="{key}", shadow_name=breakable)
    def queued_again(self, key):
        act(self, key)
        raise self.retry(countdown=600)

    @task("queued_or_error", queueing_lock="{key}", on_queued="raise")
    def queued_or_error(self, key):
        return act(self, key)

    @task("both_late", lock="{key}", queueing_lock="{key}", busy_delay=0.05, busy_delay_max=0.2,
          acks_late=True, shadow_name=breakable, autoretry_for=(Exception,))  # fmt: skip
    def both_late(self, key):
        return act(self, key)

    @task("both_fragile", lock="{key}", queueing_lock="{key}", queueing_using=FRAGILE,
          busy_delay=0.05, busy_delay_max=0.2, busy_limit=None)  # fmt: skip
    def both_fragile(self, key):
        return act(self, key)

    @task("both", lock="{key}", queueing_lock="{key}", busy_delay=0.05, busy_delay_max=0.2)
    def both(self, key):
        return act(self, key)

    @task("slot_wait", lock="{key}", slots=2, on_busy="wait", queueing_lock="{key}:{number}")
    def slot_wait(self, key, number):
        return act(self, key, number=number)

    @task("rated", rate="2/2s", rate_name="{key}", busy_delay=0.2, busy_delay_max=0.5)
    def rated(self, key, number):
        return number, time.time()

    @task("slot_skip", lock="{key}", slots=2, on_busy="skip")
    def slot_skip(self, key):
        return act(self, key)

    @task("slot_retry", lock="{key}", slots=2, busy_delay=0.05, busy_delay_max=0.3)
    def slot_retry(self, key):
        return act(self, key)

    @task("slot_of_three", lock="{key}", slots=3, busy_delay=0.05, busy_delay_max=0.3)
    def slot_of_three(self, key):
        return act(self, key)

    @task("slot_agreed", lock="{key}", slots="agreed", busy_delay=0.05, busy_delay_max=0.3)
    def slot_agreed(self, key):
        return act(self, key)

    @task("slot_doomed", lock="{key}", slots=2, on_busy="wait",
          **({} if using == "zookeeper" else {"lease": 600}))  # fmt: skip
    def slot_doomed(self, key):
        return act(self, key)

    @task("tracked", progress=True, autoretry_for=(Exception,), max_retries=1)
    def tracked(self, key):
        self.progress.advance()
        publish(f"{key}:started", pid=os.getpid())
        for _ in track(range(10**6), self.progress):
            time.sleep(0.01)

    @task("slot_within_slot", lock="{key}", slots=2)
    def slot_within_slot(self, key):
        taken = [self.lock.info().taken]
        with self.lock:
            taken.append(self.lock.info().taken)
        self.lock.verify()
        return [*taken, self.lock.info().taken]

    @task("slot_checked", lock="{key}", slots=2)
    def slot_checked(self, key):
        act(self, key)
        self.lock.check()

    @task("slot_watchful", lock="{key}", slots=2, on_lost="terminate")
    def slot_watchful(self, key):
        publish(f"{key}:started", token=self.lock.token)
        time.sleep(LIMIT)

    @task("log_slots", lock="{key}", slots=3, busy_delay=0.02, busy_delay_max=0.2, busy_limit=None)
    def log_slots(self, key, trace):
        log(self, key, trace)

    return SimpleNamespace(**{name: made for name, made in locals().items() if name != "task"})


def log(task, key, trace):
    """Write into a log that has the times of the database's clock."""
    entries = Entry.objects.using("mariadb")
    entries.create(trace=trace, client=key, what=Entry.What.ENTER, token=task.lock.token)
    time.sleep(0.02)
    entries.create(trace=trace, client=key, what=Entry.What.LEAVE, token=task.lock.token)


def end(key, what):
    """End a task as it was told."""
    if what == "fail":
        raise ValueError(key)
    if what == "ignore":
        raise Ignore
    if what == "reject":
        raise Reject(key)
    return key


OF = {using: tasks_of(using) for using in (*BACKENDS, ETCD)}


@locked_task(name="fragile.long", lock="{key}", using=FRAGILE, lease=600, bind=True)
def fragile_long(self, key):
    return act(self, key)


@locked_task(name="fragile.queued", queueing_lock="{key}", queueing_using=FRAGILE, bind=True)
def fragile_queued(self, key, again=False):
    act(self, key)
    if again:
        raise self.retry(countdown=600)
    return key


def on_fragile(name, **options):
    """Make a task that says how often it was retried, by a lock that cannot always be asked for."""

    def body(self, key):
        return act(self, key, retries=self.request.retries)

    pauses = {"busy_delay": 0.1, "busy_delay_max": 0.5}
    return locked_task(
        name=f"fragile.{name}", lock="{key}", using=FRAGILE, bind=True, **pauses, **options
    )(body)


fragile_retry = on_fragile("retry", max_retries=0)
fragile_briefly = on_fragile("briefly", unavailable_timeout=0.35)
fragile_auto = on_fragile(
    "auto",
    on_unavailable="raise",
    autoretry_for=(LockUnavailable,),
    retry_kwargs={"max_retries": 1000, "countdown": 0.1},
)


@locked_task(
    name="mariadb.refuse_auto",
    lock="{key}",
    using="mariadb",
    on_busy="raise",
    autoretry_for=(LockBusy,),
    retry_kwargs={"max_retries": 1000, "countdown": 0.1},
    bind=True,
)
def refuse_auto(self, key):
    return act(self, key, retries=self.request.retries)


@locked_task(name="patient.alone", lock="{key}", using=PATIENT, bind=True)
def patient(self, key):
    return act(self, key)


@app.task(name="plain.echo")
def echo(value=None):
    return value


@app.task(name="plain.leave_behind")
def leave_behind(key, using):
    return Lock(key, using=using).acquire(blocking=False)


@app.task(name="plain.tries")
def tries(key, using):
    lock = Lock(key, using=using)
    if got := lock.acquire(blocking=False):
        lock.release()
    return got


@app.task(name="plain.gather")
def gather(values):
    return values


@locked_task(
    name="mariadb.of_value",
    lock="{key}:{value}",
    queueing_lock="{key}:{value}",
    on_busy="skip",
    using="mariadb",
    bind=True,
)
def of_value(self, key, value):
    return act(self, key)


class Article(BaseModel):
    """What a task may be about."""

    number: int
    tags: dict[str, int] = {}


@locked_task(
    name="mariadb.of_model",
    lock="{key}:{article}",
    queueing_lock="{key}:{article}",
    on_busy="skip",
    using="mariadb",
    bind=True,
    pydantic=True,
)
def of_model(self, key: str, article: Article):
    return act(self, key)


class Report(LockedTask):
    """A task class, with an option of the class and a default among the arguments."""

    name = "classes.report"
    lock = "report:{account_id}:{kind}"
    on_busy = "skip"
    using = "mariadb"

    def run(self, account_id, kind="monthly"):
        return self.lock.name


report = app.register_task(Report())
