"""The page of the package index: the README, whose links lead to the repository."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:)([^)\s]+)\)")


class CustomMetadataHook(MetadataHookInterface):
    """Adds the README to the metadata, with links that work outside of the repository."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the readme."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        repository = metadata.get("urls", {}).get("Repository")
        page = free_links(text, repository, f"v{metadata['version']}")
        metadata["readme"] = {"content-type": "text/markdown", "text": page}


def free_links(text: str, repository: str | None, version: str) -> str:
    """Return a page without relative links.

    Parameters
    ----------
    text
        Markdown, with links relative to the repository.
    repository
        URL of the repository; without it links become texts, and pictures are left out.
    version
        Tag of the linked files.
    """

    def replace(link: re.Match[str]) -> str:
        mark, words, path = link.groups()
        if repository is None:
            return "" if mark else words
        kind = "raw" if mark else "blob"
        return f"{mark}[{words}]({repository.rstrip('/')}/{kind}/{version}/{path})"

    return _LINK.sub(replace, text)
