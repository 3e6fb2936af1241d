"""The pages for users, and what is in them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: docs/architecture.md is for maintainers.
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES.remove(ROOT / "docs" / "architecture.md")
#: Its files belong together; test_tutorial.py makes them.
TUTORIAL = ROOT / "docs" / "tutorial.md"


def text(pages=PAGES):
    """Return all of them, one after the other."""
    return "\n".join(page.read_text() for page in pages)


def snippets(language, pages=PAGES):
    """Return each piece of code in that language, in order and once."""
    found = re.findall(rf"^```{language}\n(.*?)^```", text(pages), re.DOTALL | re.MULTILINE)
    return list(dict.fromkeys(found))
