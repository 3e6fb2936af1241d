"""What the lock of a command is called."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandParser

from distlock.commands.exit_codes import USAGE, leave
from distlock.core.name_template import fields
from distlock.types.names import checked_name

_PLACE = ".management.commands."


def own_name(command: type[BaseCommand]) -> str:
    """Return ``app.command`` for a command of an app, else where its class is."""
    module = command.__module__
    app = apps.get_containing_app_config(module)
    if app is None or _PLACE not in module:
        return f"{module}.{command.__qualname__}"
    return f"{app.label}.{module.rpartition('.')[2]}"


def check_template(template: str, command: type[BaseCommand], parser: CommandParser) -> None:
    """Raise ImproperlyConfigured if the template names what is no option of the command."""
    known = sorted(_options(parser))
    try:
        mentioned = fields(template)
        if not mentioned:
            checked_name(template.format())
    except (ValueError, TypeError, LookupError) as error:
        raise ImproperlyConfigured(
            f"{command.__module__}: lock_name={template!r} is no template: {error}"
        ) from error
    for field in mentioned:
        if field not in known:
            raise ImproperlyConfigured(
                f"{command.__module__}: lock_name={template!r} mentions {field!r}, which is no"
                f" option of the command; its options are: {', '.join(known)}"
            )


def filled_in(template: str, options: Mapping[str, Any]) -> str:
    """Return the name for these options; ends the command if no lock can be called so."""
    try:
        return checked_name(template.format(**options))
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        leave(USAGE, f"lock_name={template!r} gives no name for these options: {error}")


def _options(parser: argparse.ArgumentParser) -> set[str]:
    known = set()
    for action in parser._actions:
        if action.dest != argparse.SUPPRESS:
            known.add(action.dest)
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                known |= _options(inner)
    return known - {"help", "version"}
