"""The application that hosts run: each path is a function of a test module.

``GET /hold?name=x`` calls ``hold(name="x")`` of the module, or awaits it, and answers with what it
returns, as JSON. Arguments are strings. Before that, while the host loads this module, the function
runs that the test has given as ``loading``.
"""

import importlib
import inspect
import os
import time
import traceback

import django
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpResponse, JsonResponse
from django.urls import path

django.setup()

module = importlib.import_module(os.environ["HOST_MODULE"])


def call(request, name):
    try:
        return JsonResponse(getattr(module, name)(**request.GET.dict()), safe=False)
    except Exception:
        return HttpResponse(traceback.format_exc(), status=500)


async def acall(request, name):
    try:
        return JsonResponse(await getattr(module, name)(**request.GET.dict()), safe=False)
    except Exception:
        return HttpResponse(traceback.format_exc(), status=500)


def ready(request):
    return JsonResponse(os.getpid(), safe=False)


urlpatterns = [path("", ready)]
urlpatterns += [
    path(name, acall if inspect.iscoroutinefunction(function) else call, {"name": name})
    for name, function in vars(module).items()
    if inspect.isfunction(function)
]

if loading := os.environ["HOST_LOADING"]:
    getattr(module, loading)()
    # uWSGI's worker hangs, before it gets here, if another thread runs Python code at the fork.
    time.sleep(0.3)

wsgi = WSGIHandler()
asgi = ASGIHandler()
