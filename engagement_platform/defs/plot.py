"""Draws bars, and a line over them, as a small picture for the pages of Dagster's UI. Figures in, markdown out.

SVG written by hand and not a PNG: 3 KB instead of 15 to 30, no drawing library to load in every run.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT = 640, 230
_LEFT, _RIGHT, _TOP = 52, 44, 34
_BARS, _LINE, _TEXT = "#4f7cff", "#e07b00", "#5b6472"


@dataclass(frozen=True)
class Bar:
    """One bar; its name stands below it, and the count above it, where it has a name."""

    count: int
    line: float | None = None
    """Where the line is above it; None: a gap."""
    name: str = ""


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


def svg(title: str, bars: Sequence[Bar], line: str = "", footer: str = "") -> str:
    """Bars (left scale), and where the line has a title, the line (right scale). Any number of bars."""
    most = nice_ceiling(max((bar.count for bar in bars), default=0))
    most_line = nice_ceiling(max((bar.line for bar in bars if bar.line is not None), default=0))
    # A few bars would be drawn as walls.
    step = (_WIDTH - _LEFT - _RIGHT) / max(10, len(bars))
    base = _HEIGHT - (62 if any(bar.name for bar in bars) else 28)
    height = base - _TOP
    size = f'width="{_WIDTH}" height="{_HEIGHT}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11" fill="{_TEXT}">',
        '<rect width="100%" height="100%" rx="6" fill="#fff"/>',
        f'<text x="{_LEFT}" y="18" fill="{_BARS}" font-weight="bold">{escape(title)}</text>',
        f'<text x="{_WIDTH - _RIGHT}" y="18" fill="{_LINE}" font-weight="bold" text-anchor="end">{escape(line)}</text>',
        f'<text x="{_LEFT}" y="{_HEIGHT - 9}">{escape(footer)}</text>',
    ]
    for share in (0.0, 0.5, 1.0):
        y = base - height * share
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.0f}" y2="{y:.0f}" stroke="#e3e7ee"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.0f}" text-anchor="end">{most * share:,.10g}</text>')
        if line:
            parts.append(f'<text x="{_WIDTH - _RIGHT + 6}" y="{y + 4:.0f}">{most_line * share:,.10g}</text>')
    points = []
    for index, bar in enumerate(bars):
        middle, tall = _LEFT + (index + 0.5) * step, height * bar.count / most
        parts.append(
            f'<rect x="{middle - step * 0.4:.1f}" y="{base - tall:.1f}" width="{step * 0.8:.1f}" height="{tall:.1f}" '
            f'fill="{_BARS}" opacity=".75"/>'
        )
        if bar.name:
            count = f"{bar.count:,}" if bar.count else ""
            parts.append(f'<text x="{middle:.1f}" y="{base - tall - 3:.1f}" text-anchor="middle">{count}</text>')
            # Slanted: 24 buckets have 24 pixels each, and a name needs 50.
            turned = f'transform="rotate(-40 {middle:.1f} {base + 12})"'
            parts.append(f'<text x="{middle:.1f}" y="{base + 12}" text-anchor="end" {turned}>{escape(bar.name)}</text>')
        if bar.line is not None:
            points.append((f"{middle:.1f}", f"{base - height * bar.line / most_line:.1f}"))
    drawn = " ".join(",".join(point) for point in points)
    parts.append(f'<polyline points="{drawn}" fill="none" stroke="{_LINE}" stroke-width="2"/>')
    parts += [f'<circle cx="{x}" cy="{y}" r="2.5" fill="{_LINE}"/>' for x, y in points]
    return "".join([*parts, "</svg>"])


def markdown(text: str, picture: str) -> str:
    """A picture inside markdown, which is how the Dagster UI shows one. text: instead of it; it needs no brackets."""
    encoded = base64.b64encode(picture.encode()).decode()
    return f"![{text}](data:image/svg+xml;base64,{encoded})"


def histogram(title: str, names: Sequence[str], counts: Sequence[int]) -> str:
    """One bar for each name, as markdown."""
    return markdown(title, svg(title, [Bar(n, None, name) for name, n in zip(names, counts, strict=True)]))


def series(title: str, line: str, every: str, numbers: Sequence[int], bars: Sequence[Bar]) -> str:
    """The last of something, oldest first, as markdown. every: what the bars are; numbers: theirs."""
    footer = f"{every} {numbers[0]} to {numbers[-1]}" if numbers else ""
    return markdown(f"the last {len(bars)} {every}", svg(title, bars, line, footer))
