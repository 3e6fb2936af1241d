"""Draw ```` ```mermaid ```` blocks while the site is built, so that it needs no script for them.

A block that Mermaid cannot read is a warning, and `make docs` makes an error of it.
``_static/site.css`` has the colors, for light and for dark.
"""

import re

import mermaidx
from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.typing import ExtensionMetadata

_LOG = logging.getLogger(__name__)
_CONFIG = {
    "theme": "base",
    # The fonts of the site are a little narrower than the one that is measured here.
    "themeVariables": {"fontFamily": "inherit", "fontSize": "15px"},
    # Long messages are wrapped, so that a picture is about as wide as the text around it.
    "sequence": {"wrap": True, "width": 110, "actorMargin": 10, "mirrorActors": False},
}


class Diagrams(SphinxPostTransform):
    default_priority = 200
    formats = ("html",)

    def run(self, **kwargs: object) -> None:
        blocks = [
            block
            for block in self.document.findall(nodes.literal_block)
            if block.get("language") == "mermaid"
        ]
        for number, block in enumerate(blocks):
            try:
                svg = mermaidx.render(block.astext(), backend="v8", config=_CONFIG).svg()
            except RuntimeError as error:
                _LOG.warning("%s", error, location=block)
                continue
            section = block.parent
            while not isinstance(section, nodes.section):
                section = section.parent
            title = section.next_node(nodes.title).astext()
            html = (
                f'<div class="diagram" role="group" tabindex="0" aria-label="Diagram: {title}">'
                f"{_with_own_ids(svg, f'diagram-{number}')}</div>"
            )
            block.replace_self(nodes.raw("", html, format="html"))


def _with_own_ids(svg: str, prefix: str) -> str:
    """Several pictures of one page must not have the same ids."""
    ids = set(re.findall(r'\bid="([^"]+)"', svg))
    names = "|".join(re.escape(each) for each in sorted(ids, key=len, reverse=True))
    return re.sub(rf'(\bid="|#|href="#)({names})(?=["\s)}}{{.,: >])', rf"\1{prefix}-\2", svg)


def setup(app) -> ExtensionMetadata:  # type: ignore[no-untyped-def]
    app.add_post_transform(Diagrams)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
