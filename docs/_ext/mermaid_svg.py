"""Draw ```` ```mermaid ```` blocks while the site is built, so that it needs no script for them.

A block that Mermaid cannot read is a warning, and `make docs` makes an error of it.
``_static/site.css`` has the colors, for light and for dark.
"""

import re
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
    "themeVariables": {"fontFamily": "inherit", "fontSize": "15px"},
    # Long messages are wrapped, so that most pictures are not wider than the text around them.
    "sequence": {
        "actorFontSize": 13,
        "actorMargin": 8,
        "diagramMarginX": 4,
        "messageFontSize": 13,
        "mirrorActors": False,
        "noteFontSize": 13,
        "width": 150,
        "wrap": True,
        "wrapPadding": 4,
    },
}


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
                self._draw(engine, block, number)
        finally:
            engine.close()

    def _draw(self, engine: Engine, block: nodes.Element, number: int) -> None:
        try:
            svg = engine.render_svg(block.astext(), "base", _CONFIG, None)
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


def _with_own_ids(svg: str, prefix: str) -> str:
    """Let no two pictures of a page have the same ids."""
    ids = sorted(set(re.findall(r'\bid="([^"]+)"', svg)), key=len, reverse=True)
    names = "|".join(map(re.escape, ids))
    return re.sub(rf'(\bid="|#)({names})(?![\w-])', rf"\1{prefix}-\2", svg)


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_post_transform(Diagrams)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
