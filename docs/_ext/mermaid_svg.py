"""Draw ```` ```mermaid ```` blocks while the site is built, so that it needs no script for them.

A block that Mermaid cannot read is a warning, and `make docs` makes an error of it.
``_static/site.css`` has the colors, for light and for dark.
"""

import re
import textwrap
from html import escape

from docutils import nodes
from mermaidx.engines.v8_engine import Engine, MermaidRenderError
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.typing import ExtensionMetadata

_LOG = logging.getLogger(__name__)
#: Milliseconds for one picture, on a machine with much else to do.
_LIMIT = 120_000
_CONFIG = {
    "fontSize": 13,  # Mermaid prefers it to the sizes of one kind of picture
    "themeVariables": {"fontFamily": "inherit", "fontSize": "13px"},
    # The spaces hold for states as well.
    "flowchart": {"nodeSpacing": 14, "padding": 6, "rankSpacing": 16, "wrappingWidth": 150},
    "sequence": {
        "actorMargin": 8,
        "diagramMarginX": 4,
        "height": 40,
        "mirrorActors": False,
        "width": 136,
        "wrap": True,
        "wrapPadding": 4,
    },
}
#: How many characters of a text stand in one line: for each column that an arrow of a sequence
#: crosses, and between two states.
_IN_COLUMN, _BETWEEN_STATES = 18, 15
_PARTICIPANT = re.compile(r"^ *(?:participant|actor) (\w+)", re.MULTILINE)
_LABEL = re.compile(
    r"^(?P<head> *(?:Note (?:over|left of|right of) (?P<over>\w+)(?:, *(?P<last>\w+))?"
    r"|(?P<from>[\w\[\]*]+) *[-<][-.<>)x]+ *(?P<to>[\w\[\]*]+)):) *(?P<text>.+)$",
    re.MULTILINE,
)


class Diagrams(SphinxPostTransform):
    default_priority = 200
    formats = ("html",)

    def run(self, **kwargs: object) -> None:
        found = self.document.findall(nodes.literal_block)
        blocks = [block for block in found if block.get("language") == "mermaid"]
        if not blocks:
            return
        engine = Engine(_LIMIT)
        engine.start()
        try:
            for number, block in enumerate(blocks):
                for label in _LABEL.finditer(block.astext()):
                    if ";" in label["text"]:
                        _LOG.warning(
                            "What follows a ; is a statement: %s", label[0], location=block
                        )
                self._draw(engine, block, number)
        finally:
            engine.close()

    def _draw(self, engine: Engine, block: nodes.Element, number: int) -> None:
        try:
            svg = engine.render_svg(_with_line_breaks(block.astext()), "base", _CONFIG, None)
        except MermaidRenderError as error:
            _LOG.warning("%s", error, location=block)
            return
        section = block.parent
        while not isinstance(section, nodes.section):
            section = section.parent
        label = escape(f"Diagram: {section[0].astext()}")
        width = re.search(r'viewBox="\S+ \S+ (\S+)', svg)[1]
        html = (
            f'<div class="diagram" style="--width: {width}px"'
            f' role="group" tabindex="0" aria-label="{label}">'
            f"{_with_own_ids(svg, f'diagram-{number}')}</div>"
        )
        block.replace_self(nodes.raw("", html, format="html"))


def _with_line_breaks(text: str) -> str:
    """Break the texts at arrows and in notes between words; Mermaid breaks names, too."""
    columns = {name: index for index, name in enumerate(_PARTICIPANT.findall(text))}

    def broken(found: re.Match[str]) -> str:
        if "<br" in found["text"]:
            return f"{found['head']} {found['text']}"
        ends = [columns.get(name, 0) for name in found.group("over", "last", "from", "to") if name]
        width = _IN_COLUMN * max(1, max(ends) - min(ends)) if columns else _BETWEEN_STATES
        lines = textwrap.wrap(found["text"], width, break_long_words=False, break_on_hyphens=False)
        prefix = "nowrap: " if columns else ""
        return f"{found['head']} {prefix}{'<br/>'.join(lines)}"

    return _LABEL.sub(broken, text)


def _with_own_ids(svg: str, prefix: str) -> str:
    """Let no two pictures of a page have the same ids."""
    ids = sorted(set(re.findall(r'\bid="([^"]+)"', svg)), key=len, reverse=True)
    names = "|".join(map(re.escape, ids))
    return re.sub(rf'(\bid="|#)({names})(?![\w-])', rf"\1{prefix}-\2", svg)


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_post_transform(Diagrams)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
