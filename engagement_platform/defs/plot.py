"""Draws the last batches of a job, or the last looks at a view, as a small picture. Figures in, markdown out.

SVG written by hand and not a PNG: 3 KB instead of 15 to 30, no drawing library to load in every run. At a batch
every 5 seconds the event log keeps 17,000 of these a day.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 640, 230
LEFT, RIGHT, TOP, BOTTOM = 52, 44, 34, 28
ROWS_COLOR, FRESHNESS_COLOR, TEXT_COLOR = "#4f7cff", "#e07b00", "#5b6472"


@dataclass(frozen=True)
class Bar:
    """One batch: its id, records received, and seconds from produced to committed for 95 % of them, if known."""

    batch_id: int
    rows: int
    freshness_s: float | None


@dataclass(frozen=True)
class Legend:
    """What a picture says beside its bars. The names of `Bar` are those of the first one."""

    bars: str = "rows in"
    line: str = "freshness p95, seconds from produced to committed"
    every: str = "batches"
    """What the bars are."""


BATCHES = Legend()


def nice_ceiling(value: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is not below `value`; 1 for anything up to 1.

    >>> [nice_ceiling(value) for value in (0, 1, 1.5, 20, 21, 4_999)]
    [1.0, 1.0, 2.0, 20.0, 50.0, 5000.0]
    """
    power = 1.0
    while True:
        for step in (1.0, 2.0, 5.0):
            if value <= step * power:
                return step * power
        power *= 10


def svg(bars: Sequence[Bar], legend: Legend = BATCHES) -> str:
    """Bars for rows (left scale) and a line for freshness (right scale), oldest batch first. Any number of bars."""
    most_rows = nice_ceiling(max((bar.rows for bar in bars), default=0))
    most_s = nice_ceiling(max((bar.freshness_s for bar in bars if bar.freshness_s is not None), default=0))
    # The first few batches would be drawn as walls.
    step = (WIDTH - LEFT - RIGHT) / max(10, len(bars))
    base, height = HEIGHT - BOTTOM, HEIGHT - BOTTOM - TOP

    def middle(index: int) -> float:
        return LEFT + (index + 0.5) * step

    size = f'width="{WIDTH}" height="{HEIGHT}"'
    said, bold = legend.line, f'fill="{FRESHNESS_COLOR}" font-weight="bold" text-anchor="end"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11" fill="{TEXT_COLOR}">',
        '<rect width="100%" height="100%" rx="6" fill="#fff"/>',
        f'<text x="{LEFT}" y="18" fill="{ROWS_COLOR}" font-weight="bold">{legend.bars}</text>',
        f'<text x="{WIDTH - RIGHT}" y="18" {bold}>{said}</text>',
        *_scales(most_rows, most_s, base, height),
    ]
    for index, bar in enumerate(bars):
        tall = height * bar.rows / most_rows
        parts.append(
            f'<rect x="{middle(index) - step * 0.35:.1f}" y="{base - tall:.1f}" width="{step * 0.7:.1f}" '
            f'height="{tall:.1f}" fill="{ROWS_COLOR}" opacity=".75"/>'
        )
    points = [
        f"{middle(index):.1f},{base - height * bar.freshness_s / most_s:.1f}"
        for index, bar in enumerate(bars)
        if bar.freshness_s is not None
    ]
    parts.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{FRESHNESS_COLOR}" stroke-width="2"/>')
    parts += [
        f'<circle cx="{x}" cy="{y}" r="2.5" fill="{FRESHNESS_COLOR}"/>' for x, y in (p.split(",") for p in points)
    ]
    if bars:
        parts.append(f'<text x="{LEFT}" y="{HEIGHT - 9}">{_span(bars, legend)}</text>')
    return "".join([*parts, "</svg>"])


def _span(bars: Sequence[Bar], legend: Legend) -> str:
    return f"{legend.every} {bars[0].batch_id} to {bars[-1].batch_id}"


def _scales(most_rows: float, most_s: float, base: int, height: int) -> list[str]:
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = base - height * share
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.0f}" y2="{y:.0f}" stroke="#e3e7ee"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.0f}" text-anchor="end">{most_rows * share:,.10g}</text>')
        parts.append(f'<text x="{WIDTH - RIGHT + 6}" y="{y + 4:.0f}">{most_s * share:,.10g}</text>')
    return parts


def markdown(bars: Sequence[Bar], legend: Legend = BATCHES) -> str:
    """The picture inside markdown, which is how the Dagster UI shows one."""
    picture = base64.b64encode(svg(bars, legend).encode()).decode()
    return f"![the last {len(bars)} {legend.every}](data:image/svg+xml;base64,{picture})"
