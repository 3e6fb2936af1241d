"""The pages of the admin about one kind of recipe: the list, one name, and what may be done."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from queue import Full
from typing import Any, ClassVar

from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST, require_safe

from distlock import audit
from distlock.admin.coordination.cells import Detail, Ref
from distlock.admin.coordination.overview import overview
from distlock.admin.coordination.recipe_pages import Action, Done, RecipePages
from distlock.admin.log import names_in_message, parse_log_key, write_log
from distlock.admin.panel import PanelAdmin, error_text, known_aliases
from distlock.commands.output import command_line
from distlock.exceptions import LockError, LockUnavailable
from distlock.fan_out import call_backends, one_line
from distlock.types.arguments import MAX_NAME, checked_name
from distlock.types.printable import escaped

logger = logging.getLogger("distlock")


class RecipeAdmin(PanelAdmin):
    """The pages of one kind of recipe. Only a POST changes anything, after a confirmation."""

    pages: ClassVar[RecipePages[Any]]

    @property
    def view_permission(self) -> str:  # type: ignore[override]
        """The permission to see these pages."""
        return f"distlock.view_{self.opts.model_name}"

    def get_urls(self) -> list[URLPattern]:
        """Return the addresses of these pages, in place of those of a model."""
        page = self._page
        return [
            page("", require_safe(self.list_view), "changelist"),
            page("one/", require_safe(self.detail_view), "one"),
            page("<path:object_id>/change/", require_safe(self.logged_view), "change"),
            *(
                page(
                    f"{action.name}/",
                    require_POST(partial(self.action_view, action=action)),
                    action.name,
                    action.permission,
                )
                for action in self.pages.actions
            ),
        ]

    def list_view(self, request: HttpRequest) -> HttpResponse:
        """Show all backends and one page of the names in them."""
        aliases, asked = known_aliases(request), request.GET
        backend = asked.get("backend", "")
        number = asked.get("page", "")
        filters = {
            "backend": backend if backend in aliases else "",
            "search": asked.get("q", "").replace("\0", "").strip()[:MAX_NAME],
        }
        return self._render(
            request,
            "coordination/list",
            title=str(self.opts.verbose_name_plural).capitalize(),
            pages=self.pages,
            aliases=aliases,
            filters=filters,
            overview=overview(
                self.pages,
                aliases,
                page=int(number) if number.isascii() and number.isdecimal() else 1,
                wait_for_silent="retry" in asked,
                **filters,
            ),
        )

    def detail_view(self, request: HttpRequest) -> HttpResponse:
        """Show one name: ``?backend=…&name=…``."""
        alias, name = request.GET.get("backend", ""), request.GET.get("name", "")
        self._check(request, alias, name)
        answer = call_backends(
            [alias],
            lambda backend, deadline: self.pages.read_page(alias, name, request.GET.dict()),
            wait_for_silent="retry" in request.GET,
        )[alias]
        detail: Detail | None = None
        if answer.value is not None:
            detail = self.pages.detail(alias, name, answer.value)
        return self._render(
            request,
            "coordination/detail",
            title=str(self.opts.verbose_name).capitalize(),
            subtitle=escaped(name),
            pages=self.pages,
            alias=alias,
            name=name,
            detail=detail,
            problem=answer.problem,
            permitted=self._permitted(request),
            show_line=command_line(f"{self.pages.kind} {self.pages.show}", alias, name),
            log=audit.entries(alias, self.pages.kind, name),
        )

    def logged_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Redirect from the object id of a log entry to the page about that name."""
        alias, _kind, name = parse_log_key(unquote(object_id))
        return HttpResponseRedirect(self._address(alias, name))

    def action_view(self, request: HttpRequest, action: Action[Any]) -> HttpResponse:
        """Show what the action would be done to, and ask; then do it."""
        try:
            ref = Ref.parse(request.POST.get("ref", ""))
        except (ValueError, RecursionError):
            messages.warning(request, _("The form was not understood. Please select again."))
            return HttpResponseRedirect(self._url("changelist"))
        self._check(request, ref.alias, ref.name)
        if chosen := request.POST.getlist("item"):
            ref = replace(ref, target=",".join(chosen))
        back = self._address(ref.alias, ref.name)
        filled = "confirmed" in request.POST or "preview" in request.POST
        form = action.form(request.POST if filled else None)
        if "confirmed" in request.POST and form.is_valid():
            self._perform(request, action, ref, form.cleaned_data)
            return HttpResponseRedirect(back)
        answer = call_backends([ref.alias], lambda backend, deadline: self.pages.read_target(ref))[
            ref.alias
        ]
        report = answer.value
        facts = None if report is None else action.facts(report, ref)
        if report is not None and facts is not None and action.initial and not filled:
            form = action.form(initial=action.initial(report, ref))
        preview = None
        if report is not None and action.preview and form.is_bound and form.is_valid():
            preview = action.preview(report, ref, form.cleaned_data)
        return self._render(
            request,
            "coordination/action",
            title=action.title,
            action=action,
            action_url=self._url(action.name),
            ref=ref,
            form=form,
            facts=facts,
            preview=preview,
            compares=action.preview is not None,
            consequences=[] if facts is None else action.consequences(report, ref),
            problem=answer.problem,
            back=back,
        )

    def _perform(
        self, request: HttpRequest, action: Action[Any], ref: Ref, values: dict[str, Any]
    ) -> None:
        """Do it, log who did it and why, and add a message that says what came of it."""
        values = {**values, "user": request.user.get_username()}

        def attempt() -> Done | LockError | None:
            try:
                return action.perform(ref, values)
            except (LockError, ValueError, TypeError, Full) as error:
                return error if isinstance(error, LockError) else LockError(one_line(error))

        answer = call_backends([ref.alias], lambda backend, deadline: [attempt()], action.timeout)[
            ref.alias
        ]
        named = names_in_message([ref.target or ref.name])
        unknown: Done | LockError | None = LockUnavailable(answer.problem)
        done = answer.value[0] if answer.value else unknown
        if done is None:
            text = _("Nothing was done, because it has changed since it was shown:")
            messages.warning(request, format_html("{} {}", text, named))
            return
        if isinstance(done, Done):
            say = messages.warning if done.why else messages.success
            say(request, format_html("{} {} {}", action.done, done.count or named, done.why))
            self._log(request, ref, done.log, {**done.values, **values})
            return
        problem = one_line(done)
        shown = error_text(request, problem)
        if not (isinstance(done, LockUnavailable) and done.maybe_applied):
            text = _("Nothing was done:")
            messages.error(request, format_html("{} {} {}", text, named, shown))
            return
        text = _("Whether it was done is not known, because no answer came:")
        messages.error(request, format_html("{} {} {}", text, named, shown))
        logger.warning("no answer to %s %r on %r: %s", action.name, ref.name, ref.alias, problem)
        sent = gettext_lazy("%(title)s: requested, without an answer. %(reason)s")
        noted = {"title": action.title, "reason": values.get("reason", "")}
        self._log(request, ref, sent, noted, action.name)

    def _log(
        self, request: HttpRequest, ref: Ref, text: Any, values: dict[str, Any], action: str = ""
    ) -> None:
        kind, model = self.pages.kind, self.pages.model
        values = {"target": ref.target, "token": ref.token, **values}
        write_log(request, ref.alias, kind, ref.name, text, values, action, model)

    def _permitted(self, request: HttpRequest) -> dict[str, str]:
        """Return the addresses of the actions that the user may take, by their names."""
        return {
            action.name: self._url(action.name)
            for action in self.pages.actions
            if request.user.has_perm(action.permission)
        }

    def _check(self, request: HttpRequest, alias: str, name: str) -> None:
        """Raise Http404 for what can be no alias or no name."""
        try:
            checked_name(name)
        except ValueError as error:
            raise Http404 from error
        if alias not in known_aliases(request):
            raise Http404

    def _address(self, alias: str, name: str) -> str:
        if not name:
            return self._url("changelist")
        return f"{self._url('one')}?{urlencode({'backend': alias, 'name': name})}"
