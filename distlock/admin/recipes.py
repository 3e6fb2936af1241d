"""The pages of the admin about one kind of recipe: the list, one name, and what may be done.

They are drawn from its description, and have a permission to see them and one for each action.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from django.contrib import messages
from django.core.paginator import Page, Paginator
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from distlock import audit
from distlock.admin.actions import ActionForm, perform
from distlock.admin.panel import PanelAdmin, known_aliases
from distlock.backends.reading import together
from distlock.commands.output import command_line
from distlock.fan_out import BackendAnswer, call_backends
from distlock.recipes.cells import Facts
from distlock.recipes.description import Action, Ref
from distlock.recipes.recipe import names_of
from distlock.registry import Entry
from distlock.types.lease import LockKey
from distlock.types.values import MAX_NAME, checked_name, escaped

#: Names on a page of the list, and names whose rows are searched if no name matches.
PAGE_SIZE, _MOST_SEARCHED = 50, 200

#: A name, and the alias of its backend.
Found = tuple[str, str]


@dataclass(frozen=True, slots=True)
class RecipeRow:
    """A name in the list. ``facts`` is None if it could not be read, ``problem`` says why."""

    alias: str
    name: str
    facts: Facts | None
    problem: str = ""

    def mentions(self, text: str) -> bool:
        """Return whether a value that everybody may see has this text, in any case of letters."""
        cells = [cell for _, cell in self.facts or () if not cell.confidential]
        return any(text.casefold() in f"{cell.value} {cell.hint}".casefold() for cell in cells)


@dataclass(frozen=True, slots=True)
class RecipeList:
    """What the list shows: the backends, which were asked for their names, and a page of these."""

    cards: Sequence[BackendAnswer[list[str]]]
    rows: Sequence[RecipeRow]
    page: Page[Found]
    unsearched: int = 0  # names that do not match, and whose rows have not been searched

    @property
    def silent(self) -> bool:
        """Whether a backend has not answered."""
        return any(card.value is None for card in self.cards)


def overview(
    entry: Entry, aliases: list[str], filters: Mapping[str, str], page: str, wait_for_silent: bool
) -> RecipeList:
    """Ask all backends for names, and then for what the names on this page stand for.

    ``filters`` are the alias of a ``backend``, and a text to ``search``; an empty one is none. If
    no name matches the text, it goes on in what the rows of the list show.
    """
    backend, search = filters["backend"], filters["search"]
    answers = call_backends(
        aliases,
        lambda each, deadline: names_of(entry.kind, each.alias),
        wait_for_silent=wait_for_silent,
    )
    every = sorted(
        (name, alias)
        for alias, answer in answers.items()
        if backend in ("", alias)
        for name in answer.value or ()
    )
    found, unsearched = [each for each in every if search.casefold() in each[0].casefold()], 0
    if search and not found:
        read = _rows(entry, every[:_MOST_SEARCHED])
        found = [(row.name, row.alias) for row in read if row.mentions(search)]
        unsearched = len(every) - len(read)
    shown = Paginator(found, PAGE_SIZE).get_page(page)
    return RecipeList([*answers.values()], _rows(entry, [*shown.object_list]), shown, unsearched)


def _rows(entry: Entry, shown: Sequence[Found]) -> list[RecipeRow]:
    describes = entry.description
    names = defaultdict[str, list[str]](list)
    for name, alias in shown:
        names[alias].append(name)

    def read(alias: str, name: str) -> Any:
        try:
            return describes.read(Ref(alias, name))
        except (TypeError, ValueError) as error:  # a bound that is no number; others are shown
            return error

    answers = call_backends(
        names,
        lambda each, deadline: dict(together(names[each.alias], partial(read, each.alias))),
    )
    rows = []
    for name, alias in shown:
        answer = answers[alias]
        report = answer.value[name] if answer.value else None
        problem = str(report) if isinstance(report, Exception) else answer.problem
        rows.append(RecipeRow(alias, name, None if problem else describes.row(report), problem))
    return rows


class RecipeAdmin(PanelAdmin):
    """The pages of one kind of recipe. Only a POST changes anything, after a confirmation."""

    entry: ClassVar[Entry]

    @property
    def view_permission(self) -> str:  # type: ignore[override]
        """The permission to see these pages."""
        return f"distlock.view_{self.opts.model_name}"

    def get_urls(self) -> list[URLPattern]:
        """Return the addresses of these pages, in place of those of a model."""
        page = self._page
        urls = [
            page("", require_safe(self.list_view), "changelist"),
            page("one/", require_safe(self.detail_view), "one"),
            page("<path:object_id>/change/", require_safe(self.logged_view), "change"),
        ]
        for action in self.entry.description.actions:
            view = require_POST(partial(self.action_view, action=action))
            urls.append(page(f"{action.name}/", view, action.name, action.permission))
        return urls

    def list_view(self, request: HttpRequest) -> HttpResponse:
        """Show all backends and one page of the names in them."""
        aliases, asked = known_aliases(request), request.GET
        backend = asked.get("backend", "")
        filters = {
            "backend": backend if backend in aliases else "",
            "search": asked.get("q", "").replace("\0", "").strip()[:MAX_NAME],
        }
        found = overview(
            self.entry, aliases, filters, asked.get("page", "1"), wait_for_silent="retry" in asked
        )
        return self._render(
            request,
            "coordination/list",
            title=str(self.opts.verbose_name_plural).capitalize(),
            describes=self.entry.description,
            aliases=aliases,
            filters=filters,
            overview=found,
        )

    def detail_view(self, request: HttpRequest) -> HttpResponse:
        """Show one name: ``?backend=…&name=…``."""
        alias, name = request.GET.get("backend", ""), request.GET.get("name", "")
        self._check(request, alias, name)
        ref, describes = Ref(alias, name), self.entry.description
        answer = call_backends(
            [alias],
            lambda backend, deadline: describes.read_page(ref, request.GET.dict()),
            wait_for_silent="retry" in request.GET,
        )[alias]
        return self._render(
            request,
            "coordination/detail",
            title=str(self.opts.verbose_name).capitalize(),
            subtitle=escaped(name),
            describes=describes,
            alias=alias,
            name=name,
            detail=None if answer.problem else describes.page(ref, answer.value),
            problem=answer.problem,
            permitted={
                action.name: self._url(action.name)
                for action in describes.actions
                if request.user.has_perm(action.permission)
            },
            show_line=command_line(f"{self.entry.kind} {describes.show}", alias, name),
            log=audit.entries(alias, self.entry.kind, name),
        )

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
        back = self._address(LockKey(ref.alias, self.entry.kind, ref.name))
        filled = "confirmed" in request.POST or "preview" in request.POST
        form = ActionForm(action, request.POST if filled else None)
        if "confirmed" in request.POST and form.is_valid():
            perform(request, self.entry.kind, action, ref, form.cleaned_data)
            return HttpResponseRedirect(back)
        read = self.entry.description.read_target
        answer = call_backends([ref.alias], lambda *_: read(ref))[ref.alias]
        report = answer.value
        facts = None if report is None else action.facts(report, ref)
        if facts is not None and action.value and action.initial and not filled:
            form = ActionForm(action, initial={action.value.name: action.initial(report, ref)})
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

    def _check(self, request: HttpRequest, alias: str, name: str) -> None:
        """Raise Http404 for what can be no alias or no name."""
        try:
            checked_name(name)
        except ValueError as error:
            raise Http404 from error
        if alias not in known_aliases(request):
            raise Http404

    def _address(self, key: LockKey, **more: str) -> str:
        return f"{self._url('one')}?{urlencode({'backend': key.alias, 'name': key.name, **more})}"
