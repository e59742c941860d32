"""Keeps the newest reports in a folder, one for each day. What is in a report is `report`."""

from __future__ import annotations

from datetime import date
from pathlib import Path

_PREFIX = "layout-"


def keep(folder: Path, day: date, page: str, most: int) -> Path:
    """Write the report of a day, in place of an earlier one of it, and remove all but the newest `most`.

    The file is complete or not there: a browser may have it open. Other files of the folder are left alone.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{_PREFIX}{day.isoformat()}.html"
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(page, encoding="utf-8")
    unfinished.replace(path)
    for old in sorted(folder.glob(f"{_PREFIX}????-??-??.html"))[:-most]:
        old.unlink(missing_ok=True)
    return path
