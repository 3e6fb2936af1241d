"""A program that writes down every moment in which it, its child and its grandchild still run.

``python beating.py FILE [stubborn]``: the child is in a session of its own; so is the grandchild,
whose parent has ended. They ignore SIGTERM if they are stubborn.
"""

import os
import signal
import sys
import time


def beat(file, who):
    while True:
        os.write(file, f"{who} {os.getpid()} {time.time():.6f}\n".encode())
        time.sleep(0.01)


def main():
    file = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    if "stubborn" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                beat(file, "grandchild")
            os._exit(0)
        beat(file, "child")
    beat(file, "program")


if __name__ == "__main__":
    main()
