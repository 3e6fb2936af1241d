"""The pages for users, and what is in them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: docs/architecture.md is for maintainers.
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES.remove(ROOT / "docs" / "architecture.md")


def text():
    """Return all of them, one after the other."""
    return "\n".join(page.read_text() for page in PAGES)


def snippets(language):
    """Return each piece of code in that language, in order and once."""
    found = re.findall(rf"^```{language}\n(.*?)^```", text(), re.DOTALL | re.MULTILINE)
    return list(dict.fromkeys(found))
