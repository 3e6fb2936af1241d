"""What a package index shows: README.md without links that are dead there, the project's links."""

from __future__ import annotations

from typing import Any

from hatch_fancy_pypi_readme import hooks
from hatchling.metadata.plugin.interface import MetadataHookInterface

#: Names of links in [project.urls], and the file of the repository that each leads to.
_FILES = {"Changelog": "CHANGELOG.md", "Security": "SECURITY.md"}

#: A link or a picture with a relative address, in Markdown; no link within the page.
_LINK = r"\[((?:[^\[\]]|`[^`]*`)*)\]\((?!https?://)([^)\s]+)\)"
_PICTURE = r"(?s)<picture>.*?</picture>\n*"
_SOURCE = r'\b(src|srcset)="(?!https?://)([^"]+)"'

#: What follows README.md where its links are text.
_WHERE = "\nAll files that are named here are in the source distribution.\n"


class AddressesHook(MetadataHookInterface):
    """Makes `readme` and `urls` of the addresses in pyproject.toml, which may be empty."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """See MetadataHookInterface.update()."""
        repository = str(self.config["repository"]).rstrip("/")
        documentation = str(self.config["documentation"]).rstrip("/")
        version = f"v{metadata['version']}"
        metadata["urls"] = urls(repository, documentation, version)
        readme = {
            "content-type": "text/markdown",
            "fragments": [{"path": "README.md"}, *([] if repository else [{"text": _WHERE}])],
            "substitutions": substitutions(repository, version),
        }
        hooks.FancyReadmeMetadataHook(self.root, readme).update(metadata)


def urls(repository: str, documentation: str, version: str) -> dict[str, str]:
    """Return the project's links, by their names."""
    found = {"Documentation": documentation} if documentation else {}
    if repository:
        found |= {"Repository": repository, "Issues": f"{repository}/issues"}
        found |= {name: f"{repository}/blob/{version}/{path}" for name, path in _FILES.items()}
    return found


def substitutions(repository: str, version: str) -> list[dict[str, str]]:
    """Return how relative links become absolute, or text where there is no repository."""
    if not repository:
        return [
            {"pattern": _PICTURE, "replacement": ""},
            {"pattern": _LINK, "replacement": r"\1"},
        ]
    return [
        {"pattern": _SOURCE, "replacement": rf'\1="{repository}/raw/{version}/\2"'},
        {"pattern": _LINK, "replacement": rf"[\1]({repository}/blob/{version}/\2)"},
    ]
