"""How Sphinx makes the site of the pages in this folder: ``make docs``.

The pages are also read in a viewer of the repository: see ``_ext/repository_markdown.py``.
The site loads nothing from another host.
"""

import sys
import tomllib
from pathlib import Path

_ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(_ROOT / "docs" / "_ext"), str(_ROOT)]

_PYPROJECT = tomllib.loads((_ROOT / "pyproject.toml").read_text())
_PROJECT = _PYPROJECT["project"]
#: Where the repository and this site are; empty until pyproject.toml names them.
_ADDRESSES = _PYPROJECT["tool"]["hatch"]["metadata"]["hooks"]["custom"]
_REPOSITORY = _ADDRESSES["repository"].rstrip("/")

project = "distlock"
copyright = _PROJECT["authors"][0]["name"]
version = release = _PROJECT["version"]
language = "en"

extensions = [
    "distlock_reference",
    "mermaid_svg",
    "myst_parser",
    "repository_markdown",
    "sphinx_copybutton",
    "sphinx_llm.txt",
]
exclude_patterns = ["_ext"]
# A reference that leads nowhere is a warning, and `make docs` makes an error of it.
nitpicky = True

# The anchors of GitHub, at every level.
myst_heading_anchors = 6

#: The address of a file of the repository is this and its path; see repository_markdown.py.
repository_files = f"{_REPOSITORY}/blob/v{version}/" if _REPOSITORY else ""
#: Files outside this folder that are pages of the site.
repository_pages = {"CHANGELOG.md": "changelog", "CONTRIBUTING.md": "contributing"}

html_theme = "furo"
html_title = f"distlock {version}"
html_baseurl = _ADDRESSES["documentation"]
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_search_scorer = str(_ROOT / "docs" / "_static" / "scorer.js")
html_favicon = "_static/lock.svg"
html_theme_options = {
    "light_logo": "lock.svg",
    "dark_logo": "lock.svg",
    "light_css_variables": {"color-brand-primary": "#24694d", "color-brand-content": "#24694d"},
    "dark_css_variables": {"color-brand-primary": "#6cc7a1", "color-brand-content": "#6cc7a1"},
}
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"

# The prompts of a shell are not copied.
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
copybutton_exclude = ".linenos, .gp, .go"

# llms.txt has the title and the first sentence of each page, llms-full.txt all of them.
llms_txt_description = _PROJECT["description"]
llms_txt_full_build = True
llms_txt_nested_enabled = False
llms_txt_suffix_mode = "replace"
markdown_http_base = html_baseurl
llms_txt_suppress_unknown_node_warnings = ["abbreviation", "meta"]
