"""Which values make folder names that every engine and every file system can live with. Where tables are is `lake`."""

from __future__ import annotations

import re

# What is safe as a folder name everywhere: ASCII, and short enough that `column=value` stays under the 255 bytes that
# file systems allow when each character outside the second class is escaped to three, as delta-rs does.
# Without ~, which delta-rs escapes when it compacts but not when it writes.
_PLAIN_FOLDER = re.compile(r"[A-Za-z0-9 _.@+,;!()-]+")
_ESCAPED = re.compile(r"[^A-Za-z0-9_.-]")
_FOLDER_BYTES = 200


def makes_folder_name(organization: str) -> bool:
    """Whether both engines can call a folder `organization_id=<organization>` on any file system."""
    escaped_bytes = len(organization) + 2 * len(_ESCAPED.findall(organization))
    return _PLAIN_FOLDER.fullmatch(organization) is not None and escaped_bytes <= _FOLDER_BYTES
