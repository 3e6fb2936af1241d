"""Who was in at the same time, by a log that threads, tasks and processes append to."""

import asyncio
import os
import random
import time

from distlock.recipes import Semaphore

TURNS = 6


class Referee:
    """Reads the log. Whoever enters writes a line after that, and another one before it leaves."""

    def __init__(self, path):
        self.path = path

    @property
    def most(self):
        """How many seats were taken at the same time at the most, as far as was written."""
        now = most = 0
        for line in self.path.read_text().splitlines():
            now += int(line)
            most = max(most, now)
        assert now == 0
        return most


def write(log, number):
    """Append a line in one step."""
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, f"{number}\n".encode())
    finally:
        os.close(descriptor)


def work(using, name, log, who, n):
    """Take n of three seats again and again; return the tokens."""
    lock, tokens, dice = Semaphore(name, 3, using=using, n=n), [], random.Random(who)
    for _ in range(TURNS):
        with lock:
            write(log, n)
            tokens.append(lock.token)
            time.sleep(dice.random() * 0.004)
            write(log, -n)
    return tokens


async def work_in_task(using, name, log, who, n):
    """See work()."""
    lock, tokens, dice = Semaphore(name, 3, using=using, n=n), [], random.Random(who)
    for _ in range(TURNS):
        async with lock:
            write(log, n)
            tokens.append(lock.token)
            await asyncio.sleep(dice.random() * 0.004)
            write(log, -n)
    return tokens
