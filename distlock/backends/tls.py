"""``OPTIONS["tls"]``: encrypted connections to the servers of a backend."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from distlock.backends.settings import BackendSettings, Secret

_DEFAULTS: Mapping[str, Any] = {
    "ca": None,
    "certfile": None,
    "keyfile": None,
    "keyfile_password": None,
    "verify_certs": True,
    "check_hostname": None,  # as verify_certs
}


def tls_options(settings: BackendSettings) -> dict[str, Any]:
    """Return the option, checked and complete; True stands for the defaults. Reads no files."""
    given = settings.options["tls"]
    if given is not True and not isinstance(given, Mapping):
        settings.refuse(f"OPTIONS['tls'] must be True or a dictionary, not {given!r}")
    tls = dict(_DEFAULTS) if given is True else settings.mapping("tls", _DEFAULTS)
    if tls["check_hostname"] is None:
        tls["check_hostname"] = tls["verify_certs"]
    elif tls["check_hostname"] and not tls["verify_certs"]:
        settings.refuse("OPTIONS['tls']: check_hostname goes only with verify_certs")
    if tls["certfile"] is None and tls["keyfile"] is not None:
        settings.refuse("OPTIONS['tls']: keyfile goes only with certfile")
    if (password := tls["keyfile_password"]) is not None:
        if not isinstance(password, str):
            kind = type(password).__name__  # and not its value: the message may be logged
            settings.refuse(f"OPTIONS['tls']: keyfile_password must be a text, not of type {kind}")
        tls["keyfile_password"] = Secret(password)
    return tls


def tls_context(tls: Mapping[str, Any]) -> ssl.SSLContext:
    """Read the files of complete options; OSError names those that cannot be read."""
    files = f"ca {tls['ca']!r}"
    try:
        context = ssl.create_default_context(cafile=tls["ca"])
        context.check_hostname = bool(tls["check_hostname"])
        context.verify_mode = ssl.CERT_REQUIRED if tls["verify_certs"] else ssl.CERT_NONE
        if tls["certfile"] is not None:
            files = f"certfile {tls['certfile']!r} with keyfile {tls['keyfile']!r}"
            # Without a function for it OpenSSL would ask the terminal for a password.
            password = tls["keyfile_password"] or ""
            context.load_cert_chain(tls["certfile"], tls["keyfile"], lambda: password)
    except (OSError, TypeError, ValueError) as error:
        raise OSError(f"cannot load {files} ({type(error).__name__}: {error})") from error
    return context
