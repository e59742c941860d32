"""Pictures of the last batches, and of histograms."""

from __future__ import annotations

import base64
import re
import xml.etree.ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from engagement_platform.defs.plot import picture

SECONDS = st.none() | st.floats(0, 1e7)
NAMES = st.text("< 1KB–≥&[]")
BARS = st.lists(st.tuples(st.integers(0, 10**9), SECONDS, NAMES), max_size=30)


def drawn(markdown: str) -> ET.Element:
    return ET.fromstring(base64.b64decode(markdown.split("base64,")[1][:-1]))


@given(BARS, st.booleans())
def test_anything_is_a_picture_with_one_bar_each(bars: list[tuple[int, float | None, str]], named: bool) -> None:
    counts, line, names = [bar[0] for bar in bars], [bar[1] for bar in bars], [bar[2] for bar in bars]
    made = picture("files by <size>", counts, names=names if named else (), line=line, line_title="seconds")
    [found] = [element.get("d", "") for element in drawn(made).iter() if element.get("opacity")]
    heights = [float(height) for height in re.findall(r"M[\d.]+ \d+v-([\d.]+)h[\d.]+V\d+", found)]
    assert len(heights) == found.count("M") == len(bars)
    assert all(0 <= height <= 200 for height in heights)
    # The scale reaches the largest, and not far beyond.
    assert max(counts, default=0) <= 1 or max(heights) >= 0.39 * (230 - 34 - (62 if named else 28))


def test_a_full_picture_stays_small_enough_for_every_event_to_carry_one() -> None:
    made = picture("rows in", [123_456] * 30, footer="batches 1 to 30", line=[12.34] * 30, line_title="freshness p95")
    assert made.startswith("![rows in, batches 1 to 30](data:image/svg+xml;base64,")
    assert len(made) < 4_000


def test_a_bar_without_a_figure_leaves_a_gap_in_the_line_and_no_zero() -> None:
    made = drawn(picture("rows in", [5, 5], footer="batches 1 to 2", line=[None, 3.0], line_title="freshness"))
    [dots] = [element.get("d", "") for element in made.iter() if element.get("stroke-linecap")]
    assert dots.count("M") == 1
    assert "batches 1 to 2" in {element.text for element in made.iter()}


def test_bars_of_a_histogram_have_their_names_and_counts() -> None:
    texts = {element.text for element in drawn(picture("files by size", [7, 0], names=["< 4 KB", "≥ 1 GB"])).iter()}
    assert {"files by size", "< 4 KB", "≥ 1 GB", "7"} <= texts
