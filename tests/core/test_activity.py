"""A hold that was given no description is described by what goes on where it was taken."""

import asyncio
import threading
from urllib.parse import quote

import pytest
from asgiref.testing import ApplicationCommunicator
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.core.signals import request_finished, request_started
from django.test import AsyncClient, Client, RequestFactory

from distlock import Lock
from distlock.activity import activity, current_activity
from distlock.types.values import MAX_DESCRIPTION
from tests.core import urls


@pytest.fixture
def client(settings):
    settings.ROOT_URLCONF = "tests.core.urls"
    settings.ALLOWED_HOSTS = ["testserver"]
    yield Client(raise_request_exception=False)
    assert current_activity() == ""


def text(response):
    return response.getvalue().decode()


def taken(**options):
    lock = Lock("taken", **options)
    with lock:
        return lock.info().description


# What is said with activity()


def test_outside_of_everything_there_is_no_description():
    assert taken() == ""


def test_an_activity_describes_the_holds_taken_in_it():
    with activity("counting"):
        assert taken() == "counting"
        assert taken(description="given") == "given"
    assert taken() == ""


def test_activities_nest_and_end_with_an_error():
    with activity("outer"):
        with pytest.raises(ZeroDivisionError), activity("inner"):
            raise ZeroDivisionError
        assert current_activity() == "outer"
    assert current_activity() == ""


def test_an_empty_activity_says_nothing():
    with activity("outer"), activity(""):
        assert taken() == ""


def test_activities_may_end_in_any_order():
    first, second = activity("first"), activity("second")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert current_activity() == "second"
    second.__exit__(None, None, None)
    assert current_activity() == ""


def test_an_activity_is_of_its_thread(in_thread):
    with activity("here"):
        assert in_thread(current_activity) == ""


async def test_tasks_have_activities_of_their_own():
    entered = asyncio.Barrier(2)

    async def work(name):
        with activity(name):
            await entered.wait()
            async with Lock(name) as lock:
                return (await lock.ainfo()).description

    assert await asyncio.gather(work("one"), work("two")) == ["one", "two"]


async def test_a_task_that_outlives_the_activity_is_not_described_by_it():
    ended = asyncio.Event()

    async def outlive():
        before = current_activity()
        await ended.wait()
        return before, current_activity()

    with activity("outer"):
        with activity("short"):
            task = asyncio.create_task(outlive())
            await asyncio.sleep(0)
        ended.set()
        assert await task == ("short", "outer")


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("line\nbreak", r"line\x0abreak"),
        ("\x1b[2J", r"\x1b[2J"),
        ("a\u202eb", r"a\u202eb"),
        ("half \ud800", r"half \ud800"),
        ("ключ 鍵 🔑", "ключ 鍵 🔑"),
    ],
)
def test_what_could_do_harm_is_shown_instead(said, shown):
    with activity(said):
        assert taken() == shown


@pytest.mark.parametrize("letter", ["x", "\u202e", "🔑"])
def test_it_is_cut_to_what_a_description_takes(letter):
    with activity(letter * 5000):
        assert len(taken()) == MAX_DESCRIPTION
    with activity("x" * MAX_DESCRIPTION):
        assert taken() == "x" * MAX_DESCRIPTION


def test_it_must_be_text():
    with pytest.raises(TypeError, match="str, not 7"), activity(7):
        pass


# Requests


def test_a_request_is_described_by_its_method_and_path(client):
    assert text(client.get("/orders/7/")) == "GET /orders/7/"
    assert text(client.post("/orders/")) == "POST /orders/"


def test_the_query_string_is_never_shown(client):
    assert text(client.get("/orders/?card=4111")) == "GET /orders/"


def test_the_prefix_of_the_site_belongs_to_the_path(client):
    assert text(client.get("/orders/", SCRIPT_NAME="/shop")) == "GET /shop/orders/"


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/größe/", "/größe/"),
        ("/a%0d%0ab/", r"/a\x0d\x0ab/"),
        ("/%e2%80%ae/", r"/\u202e/"),
        ("/%ff/", "/�/"),
        ("/" + "x" * 3000, "/" + "x" * (MAX_DESCRIPTION - 6) + "…"),
    ],
    ids=["letters", "lines", "bidi", "not utf-8", "long"],
)
def test_paths_from_anywhere_do_no_harm(client, path, shown):
    assert text(client.get(quote(path, safe="/%"))) == f"GET {shown}"


def test_a_description_that_was_given_stays(client):
    assert text(client.get("/given/")) == "given"


def test_an_activity_within_a_request_comes_first(client):
    assert text(client.get("/inside/")) == "a step of it | GET /inside/"


def test_a_request_within_an_activity_leaves_it_as_it_was(client):
    with activity("a test"):
        assert text(client.get("/orders/")) == "GET /orders/"
        assert current_activity() == "a test"


def test_a_request_that_fails_is_over_too(client):
    assert client.get("/fail/").status_code == 500
    assert current_activity() == ""


def test_a_stream_belongs_to_its_request(client):
    assert text(client.get("/stream/")) == "GET /stream/\n" * 2


def test_a_request_that_was_never_closed_ends_with_the_next(client):
    """Some servers forget to close a response; the thread then serves someone else."""
    handler, environ = WSGIHandler(), RequestFactory().get("/first/").environ
    handler({**environ, "wsgi.errors": None}, lambda status, headers: None)
    assert current_activity() == "GET /first/"
    assert text(client.get("/second/")) == "GET /second/"
    assert current_activity() == ""


def test_requests_on_threads_do_not_mix(client):
    both = threading.Barrier(2)
    answers = {}

    def serve(path):
        request_started.send(sender=None, environ={"REQUEST_METHOD": "GET", "PATH_INFO": path})
        both.wait(30)
        answers[path] = current_activity()
        both.wait(30)
        request_finished.send(sender=None)
        answers[f"{path} over"] = current_activity()

    threads = [threading.Thread(target=serve, args=[path]) for path in ("/a", "/b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert answers == {"/a": "GET /a", "/b": "GET /b", "/a over": "", "/b over": ""}


def test_signals_that_know_no_request_do_no_harm():
    """Workers send them between two jobs, to have connections closed."""
    with activity("a job"):
        request_started.send(sender=None)
        assert current_activity() == "a job"
        request_finished.send(sender=None)
        assert current_activity() == "a job"


# ASGI


async def test_a_request_of_the_async_test_client_leaves_nothing_behind(client):
    assert (await AsyncClient().get("/async/?secret=1")).status_code == 200
    assert current_activity() == ""


async def asgi(path):
    """Serve one request as an ASGI server does; the body of the answer."""
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": b"secret=1",
        "headers": [(b"host", b"testserver")],
    }
    served = ApplicationCommunicator(ASGIHandler(), scope)
    await served.send_input({"type": "http.request"})
    body, more = b"", True
    while more:
        message = await served.receive_output(30)
        body += message.get("body", b"")
        more = message["type"] != "http.response.body" or message.get("more_body", False)
    await served.wait(30)
    return body.decode()


@pytest.mark.parametrize(
    ("path", "seen"),
    [
        ("/sync/", "GET /sync/"),
        ("/async/", "GET /async/ | GET /async/"),
        ("/stream/", "GET /stream/\n" * 2),
        ("/astream/", "GET /astream/\n" * 2),
        ("/inside/", "a step of it | GET /inside/"),
    ],
)
@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume synchronous iterators")
async def test_a_request_is_described_in_its_tasks_and_threads(client, path, seen):
    assert await asgi(path) == seen


async def test_asgi_requests_at_the_same_time_do_not_mix(client):
    paths = [f"/orders/{number}/" for number in range(5)]
    assert await asyncio.gather(*map(asgi, paths)) == [f"GET {path}" for path in paths]


async def test_what_goes_on_after_a_request_is_not_described_by_it(client):
    urls.left_behind.clear()
    await asgi("/leave-behind/")
    task, go_on = urls.left_behind.pop()
    go_on.set()
    assert await task == ""
