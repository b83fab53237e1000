"""Small charts as SVG, for pages that have to stand alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

WIDTH, HEIGHT = 440, 230
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 34, 30
BINS = 48


@dataclass(frozen=True)
class Line:
    """A curve of a chart."""

    label: str
    colour: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, eq=False)
class Heap:
    """Values whose distribution is shown."""

    label: str
    colour: str
    values: np.ndarray


@dataclass(frozen=True)
class _Plane:
    """Where values lie on the paper."""

    x: tuple[float, float]
    y: tuple[float, float]

    def across(self, value: float) -> float:
        share = (value - self.x[0]) / (self.x[1] - self.x[0])
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def up(self, value: float) -> float:
        share = (value - self.y[0]) / (self.y[1] - self.y[0])
        return round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 1)


def line_chart(title: str, lines: Sequence[Line]) -> str:
    """Curves over the steps of a run, which are whole numbers; one alone is told by the title and needs no legend."""
    points = [point for line in lines for point in line.points]
    plane = _Plane(_room([x for x, _ in points]), _room([y for _, y in points], margin=0.06))
    drawn = [_path(line, plane) for line in lines]
    legend = [(line.label, line.colour) for line in lines] if len(lines) > 1 else []
    drawn.append(f'<text class="tick" x="4" y="{HEIGHT - 10}">step</text>')
    return _chart(title, legend, plane, drawn, whole=True)


def histogram(title: str, heaps: Sequence[Heap], span: tuple[float, float]) -> str:
    """Distributions over the same span; each has the same area, however many values it has."""
    edges = np.linspace(*span, BINS + 1)
    shares = [np.histogram(heap.values, edges)[0] / max(1, len(heap.values)) for heap in heaps]
    plane = _Plane(span, (0.0, 1.08 * max(float(share.max()) for share in shares)))
    drawn = [_steps(heap, edges, share, plane) for heap, share in zip(heaps, shares, strict=True)]
    legend = [(f"{heap.label} ({len(heap.values):,})", heap.colour) for heap in heaps]
    return _chart(title, legend, plane, drawn, counts=False)


def _chart(
    title: str,
    legend: Sequence[tuple[str, str]],
    plane: _Plane,
    drawn: Sequence[str],
    *,
    counts: bool = True,
    whole: bool = False,
) -> str:
    """The drawing in its frame; without `counts` the heights have no numbers, where only shapes are compared.

    `whole`: what lies across are whole numbers.
    """
    parts = [f'<text class="title" x="{LEFT}" y="13">{escape(title)}</text>', _legend(legend)]
    for value in _ticks(*plane.y):
        y = plane.up(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        if counts:
            parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{value:g}</text>')
    for value in _ticks(*plane.x, least=1.0 if whole else 0.0):
        x, shown = plane.across(value), _counted(value) if whole else f"{value:g}"
        parts.append(f'<text class="tick" x="{x}" y="{HEIGHT - 10}" text-anchor="middle">{shown}</text>')
    parts += drawn
    base = HEIGHT - BOTTOM
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{base}" y2="{base}"/>')
    label = escape(title, quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _legend(entries: Sequence[tuple[str, str]]) -> str:
    parts, x = [], LEFT
    for label, colour in entries:
        parts.append(f'<rect x="{x}" y="20" width="9" height="9" rx="2" fill="{colour}"/>')
        parts.append(f'<text class="legend" x="{x + 13}" y="28">{escape(label)}</text>')
        x += 28 + round(6.1 * len(label))
    return "".join(parts)


def _path(line: Line, plane: _Plane) -> str:
    places = [f"{plane.across(x)},{plane.up(y)}" for x, y in line.points]
    if len(places) == 1:
        x, y = places[0].split(",")
        return f'<circle cx="{x}" cy="{y}" r="2.5" fill="{line.colour}"/>'
    return f'<polyline class="curve" stroke="{line.colour}" points="{" ".join(places)}"/>'


def _steps(heap: Heap, edges: np.ndarray, shares: np.ndarray, plane: _Plane) -> str:
    """The outline of a histogram, filled lightly so that those behind it are seen."""
    corners = [f"{plane.across(edges[0])},{plane.up(0)}"]
    for left, right, share in zip(edges[:-1], edges[1:], shares, strict=True):
        y = plane.up(float(share))
        corners += [f"{plane.across(left)},{y}", f"{plane.across(right)},{y}"]
    corners.append(f"{plane.across(edges[-1])},{plane.up(0)}")
    shape = " ".join(corners)
    return f'<polygon points="{shape}" fill="{heap.colour}" fill-opacity="0.28" stroke="{heap.colour}"/>'


def _room(values: Sequence[float], margin: float = 0.0) -> tuple[float, float]:
    """The span of values, with air around it, and never empty."""
    low, high = min(values), max(values)
    air = (high - low) * margin
    if low == high:
        air = abs(low) * 0.1 or 0.5
    return low - air, high + air


def _counted(value: float) -> str:
    """A whole number, short enough to stand beside others."""
    return f"{value:,.0f}" if value < 1e6 else f"{value / 1e6:g}M"


def _ticks(low: float, high: float, wanted: int = 5, least: float = 0.0) -> list[float]:
    """Round numbers from low to high, about as many as wanted, no nearer to each other than `least`."""
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = max(least, power * min((1, 2, 5, 10), key=lambda times: abs(times * power - rough)))
    first, last = math.ceil(low / step), math.floor(high / step)
    return [round(number * step, 12) for number in range(first, last + 1)]
