"""An old store to import: many small files of two formats in folders of days.  python -m benchmarks.old_store old-store

Data: seeded page views, the same bytes each time; every second file is CSV compressed with gzip, the others are JSON
lines as they are. What importing it takes is said by `engagement-platform import old-store old/views --yes`.
"""

from __future__ import annotations

import argparse
import gzip
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

COLUMNS = ("view_id", "visitor", "page", "price", "at")
_BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def views(random: Random, day: int, first: int, count: int) -> list[tuple[str, str, str, float | None, str]]:
    """So many page views of a day, as text and numbers, in the order of COLUMNS."""
    return [
        (
            f"view-{number:09d}",
            f"visitor-{random.randrange(50_000):05d}",
            f"/shelf/{random.randrange(400)}/item/{random.randrange(9_000)}",
            None if random.random() < 0.3 else random.randrange(100, 90_000) / 100,
            (_BEGAN + timedelta(days=day, milliseconds=random.randrange(86_400_000))).isoformat(),
        )
        for number in range(first, first + count)
    ]


def make(folder: Path, *, files: int, rows: int, days: int, seed: int = 7) -> int:
    """Write the store; the bytes of its files. rows: in each file."""
    random, size = Random(seed), 0
    for number in range(files):
        day = number % days
        made = views(random, day, number * rows, rows)
        place = folder / f"day={(_BEGAN + timedelta(days=day)).date().isoformat()}"
        place.mkdir(parents=True, exist_ok=True)
        if number // days % 2:
            file = place / f"part-{number:05d}.csv.gz"
            lines = [",".join(COLUMNS), *(",".join("" if v is None else str(v) for v in view) for view in made)]
            content = gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0)
        else:
            file = place / f"part-{number:05d}.jsonl"
            content = "".join(json.dumps(dict(zip(COLUMNS, view, strict=True))) + "\n" for view in made).encode()
        file.write_bytes(content)
        size += len(content)
    return size


def main() -> None:
    """Make the store and say how large it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to; made if need be")
    parser.add_argument("--files", type=int, default=2_000, help="how many (default 2000)")
    parser.add_argument("--rows", type=int, default=200, help="page views in each (default 200)")
    parser.add_argument("--days", type=int, default=10, help="folders (default 10)")
    given = parser.parse_args()
    size = make(given.folder, files=given.files, rows=given.rows, days=given.days)
    print(f"{given.files:,} files, {size:,} bytes, {given.files * given.rows:,} rows in {given.folder}")


if __name__ == "__main__":
    main()
