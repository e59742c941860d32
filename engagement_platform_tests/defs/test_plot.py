"""Pictures of the last batches, and of histograms."""

from __future__ import annotations

import base64
import xml.etree.ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from engagement_platform.defs.plot import Bar, histogram, nice_ceiling, series, svg

SECONDS = st.none() | st.floats(0, 1e7)
NAMES = st.text("< 1KB–≥&[]")
BARS = st.lists(st.builds(Bar, st.integers(0, 10**9), SECONDS, NAMES), max_size=30)


@given(BARS)
def test_anything_is_a_picture_with_one_bar_each(bars: list[Bar]) -> None:
    drawn = [e for e in ET.fromstring(svg("files by <size>", bars, "seconds")).iter() if e.get("opacity")]
    assert len(drawn) == len(bars)
    assert all(0 <= float(bar.get("height", "-1")) <= 200 for bar in drawn)


@given(st.floats(0, 1e12))
def test_a_scale_reaches_its_values_and_not_far_beyond(value: float) -> None:
    assert max(value, 1) <= nice_ceiling(value) <= max(1, value * 2.5)


def test_a_full_picture_stays_small_enough_for_every_event_to_carry_one() -> None:
    bars = [Bar(123_456, 12.34) for _ in range(30)]
    text = series("rows in", "freshness p95", "batches", range(100_000, 100_030), bars)
    assert text.startswith("![the last 30 batches](data:image/svg+xml;base64,")
    assert len(text) < 12_000


def drawn(markdown: str) -> str:
    return base64.b64decode(markdown.split("base64,")[1][:-1]).decode()


def test_a_bar_without_a_figure_leaves_a_gap_in_the_line_and_no_zero() -> None:
    picture = drawn(series("rows in", "freshness", "batches", [1, 2], [Bar(5), Bar(5, 3.0)]))
    assert picture.count("<circle") == 1
    assert "batches 1 to 2" in picture


def test_bars_of_a_histogram_have_their_names_and_counts() -> None:
    texts = [e.text for e in ET.fromstring(drawn(histogram("files by size", ["< 4 KB", "≥ 1 GB"], [7, 0]))).iter()]
    assert {"files by size", "< 4 KB", "≥ 1 GB", "7"} <= set(texts)
