"""Links of pages that lead out of docs/, on the site.  Loaded by MkDocs (`hooks` in mkdocs.yml).

On a git host `../CHANGELOG.md` is a file beside the pages. The site has no such file, so it shows the path as text.
Links within docs/ stay as they are: MkDocs checks them.
"""

from __future__ import annotations

import re
from typing import Any

_OUT_OF_DOCS = re.compile(r"\[([^\]]+)\]\(\.\./([^)\s#]+)(?:#[^)\s]*)?\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A page's text with the links out of docs/ as paths; MkDocs calls it for each page.

    >>> on_page_markdown("[the README](../README.md#more), [log](log.md), [ivy.xml](../lake/ivy.xml)")
    'the README (`README.md`), [log](log.md), `lake/ivy.xml`'
    """
    return _OUT_OF_DOCS.sub(_as_path, markdown)


def _as_path(link: re.Match[str]) -> str:
    text, path = link.groups()
    return f"`{path}`" if path.endswith(text) else f"{text} (`{path}`)"
