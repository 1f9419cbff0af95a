"""Hatchling's hook: the README as package indexes show it, which know nothing of the files beside it.

`Source` under `[project.urls]` is the address of the repository on GitHub. Relative links and pictures lead there; as
long as it is not given, links are plain words, and pictures and the list of pages are left out.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_PICTURE = re.compile(r"!\[([^\]]*)\]\((?!https?:)([^)\s]+)\)")
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:)([^)\s]+)\)")


def readme(text: str, source: str | None) -> str:
    """Return Markdown without relative links."""
    if source is None:
        text = re.sub(rf"^{_PICTURE.pattern}\n+", "", text, flags=re.MULTILINE)
        text = re.sub(r"^## Read on\n.*?(?=^Licence)", "", text, flags=re.MULTILINE | re.DOTALL)
        return _LINK.sub(r"\1", text)
    text = _PICTURE.sub(rf"![\1]({source}/raw/HEAD/\2)", text)
    return _LINK.sub(rf"[\1]({source}/blob/HEAD/\2)", text)


class ReadmeHook(MetadataHookInterface):
    """Hatchling calls it wherever it needs the metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the README."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        source = metadata.get("urls", {}).get("Source")
        metadata["readme"] = {"content-type": "text/markdown", "text": readme(text, source)}
