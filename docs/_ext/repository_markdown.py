"""Let Sphinx read Markdown as a viewer of the repository does.

- A link to a file outside ``docs/`` leads to its page, if ``repository_pages`` names one, else to
  the file at ``repository_files``. Without such an address it is plain text. A file that does not
  exist is a warning.
- A ``<picture>`` with a source for dark screens follows the switch of the site as well.
- The first sentence of a page describes it for search engines, and in llms.txt.
- A marker of an unfinished merge, and a second title, is a warning.
"""

import posixpath
import re
from pathlib import Path

from docutils import nodes
from pygments.lexers import BashLexer
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util import logging
from sphinx.util.typing import ExtensionMetadata

_LOG = logging.getLogger(__name__)

_PICTURE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="(?P<dark>[^"]+)">'
    r'\s*<img src="(?P<light>[^"]+)" alt="(?P<alt>[^"]+)"[^>]*>\s*</picture>'
)
_SENTENCE = re.compile(r".+?[.?!](?=\s|$)", re.DOTALL)
_MERGE_MARKER = re.compile(r"^(<<<<<<<|>>>>>>>|\|\|\|\|\|\|\|)( .*)?$", re.MULTILINE)


class RepositoryLinks(SphinxTransform):
    default_priority = 1

    def apply(self, **kwargs: object) -> None:
        docs = Path(self.env.srcdir)
        pages = self.config.repository_pages
        here = {page: docs.parent / file for file, page in pages.items()}.get(
            self.env.docname, docs / self.env.doc2path(self.env.docname)
        )
        for link in list(self.document.findall(_is_markdown_link)):
            path, anchor = _parts(link)
            target = Path(posixpath.normpath(here.parent / path))
            if not path or target.is_relative_to(docs) and here.is_relative_to(docs):
                continue  # MyST knows the way
            file = target.relative_to(docs.parent).as_posix()
            page = pages.get(file) or self.env.path2doc(target)
            if page in self.env.found_docs:
                link.replace_self(self._to_page(link, page, anchor))
            elif target.exists():
                link.replace_self(self._to_file(link, file, anchor))

    def _to_page(self, link: nodes.Element, page: str, anchor: str) -> nodes.Element:
        return addnodes.pending_xref(
            "",
            *link.children,
            refdomain="doc",
            reftype="myst",
            reftarget=page,
            reftargetid=anchor or None,
            refdoc=self.env.docname,
            refexplicit=True,
        )

    def _to_file(self, link: nodes.Element, file: str, anchor: str) -> nodes.Element:
        if not self.config.repository_files:
            return nodes.inline("", "", *link.children)
        address = self.config.repository_files + file + (f"#{anchor}" if anchor else "")
        return nodes.reference("", "", *link.children, refuri=address)


def _is_markdown_link(node: nodes.Node) -> bool:
    is_link = isinstance(node, (addnodes.pending_xref, addnodes.download_reference))
    return is_link and node.get("reftype") == "myst"


def _parts(link: nodes.Element) -> tuple[str, str]:
    """Return the path and the anchor as they stand in the Markdown."""
    if link.get("refdomain") == "doc":
        return f"{link['reftarget']}.md", link["reftargetid"] or ""
    path, _, anchor = link["reftarget"].partition("#")
    return path, anchor


class Pictures(SphinxTransform):
    default_priority = 1

    def apply(self, **kwargs: object) -> None:
        for raw in list(self.document.findall(nodes.raw)):
            if found := _PICTURE.fullmatch(raw.astext().strip()):
                raw.replace_self(
                    [
                        nodes.image(uri=found[mode], alt=found["alt"], classes=[f"only-{mode}"])
                        for mode in ("light", "dark")
                    ]
                )


class Descriptions(SphinxTransform):
    default_priority = 1

    def apply(self, **kwargs: object) -> None:
        paragraph = next(self.document.findall(nodes.paragraph), None)
        if paragraph is not None and (sentence := _SENTENCE.match(paragraph.astext())):
            text = " ".join(sentence[0].split())
            self.document.insert(0, nodes.meta(name="description", content=text))


class OneTitle(SphinxTransform):
    default_priority = 1

    def apply(self, **kwargs: object) -> None:
        sections = [node for node in self.document.children if isinstance(node, nodes.section)]
        for section in sections[1:]:
            title = section[0].astext()
            _LOG.warning("A page has one title; this is its second: %s", title, location=section)


def _find_merge_markers_of_page(app: Sphinx, page: str, content: list[str]) -> None:
    _find_merge_markers(content[0], app.env.doc2path(page))


def _find_merge_markers_of_included(app: Sphinx, path: Path, by: str, content: list[str]) -> None:
    _find_merge_markers(content[0], path)


def _find_merge_markers(text: str, path: Path) -> None:
    for marker in _MERGE_MARKER.finditer(text):
        line = text.count("\n", 0, marker.start()) + 1
        _LOG.warning("A merge is not finished: %s", marker[0], location=f"{path}:{line}")


def setup(app: Sphinx) -> ExtensionMetadata:
    app.connect("source-read", _find_merge_markers_of_page)
    app.connect("include-read", _find_merge_markers_of_included)
    app.add_config_value("repository_files", "", "env")
    app.add_config_value("repository_pages", {}, "env")
    app.add_lexer("crontab", BashLexer)
    for transform in (RepositoryLinks, Pictures, Descriptions, OneTitle):
        app.add_transform(transform)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
