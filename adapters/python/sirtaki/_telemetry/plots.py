"""Plots of a page as SVG text: lines over steps or seconds, and bars. Colors are classes of the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

WIDTH, HEIGHT = 720, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 24, 10, 34
#: Number of colors in the style sheet; classes c0, c1, ...
COLORS = 6
#: A value this many times the 98th percentile is cut, because it would make the others a flat line.
_OUTLIER = 3.0

#: Units with their size and symbol, the largest first.
SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
BYTES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
BITS = ((1e9 / 8, "Gbit/s"), (1e6 / 8, "Mbit/s"), (1e3 / 8, "kbit/s"))
PLAIN = ((1.0, ""),)
Units = Sequence[tuple[float, str]]
#: Pixel of a value on an axis.
Scale = Callable[[float], float]


@dataclass(frozen=True)
class Line:
    """A line of a plot; a filled one has a colored area below it, a faint one is thin and behind the others."""

    name: str
    values: Sequence[float | None]
    color: int
    filled: bool = False
    faint: bool = False


def unit_of(most: float, units: Units) -> tuple[float, str]:
    """Returns the largest unit in which `most` is 1 or more, else the smallest."""
    return next(((size, symbol) for size, symbol in units if abs(most) >= size), units[-1])


def number(value: float) -> str:
    """Returns a number with three significant digits, and with commas; a tiny one with an exponent."""
    if value == 0:
        return "0"
    if not 1e-3 <= abs(value) < 1e15:
        return f"{value:.3g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def quantity(value: float | None, units: Units) -> str:
    """Returns a value with its unit, such as "1.5 ms"; "–" for None."""
    if value is None:
        return "–"
    size, symbol = unit_of(value, units)
    return f"{number(value / size)} {symbol}".rstrip()


def ticks(most: float, wanted: int = 5) -> list[float]:
    """Returns round numbers from 0 to the first one that is `most` or more."""
    rough = max(most, 1e-12) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * (1 - 1e-9))
    return [step * i for i in range(math.ceil(most / step - 1e-9) + 1)] if most > 0 else [0.0, step]


def line_plot(title: str, xs: Sequence[float], lines: Sequence[Line], units: Units, x_label: str) -> str:
    """Returns a plot of `lines` over `xs` with axes and a title for each point; "" without points."""
    shown = [value for line in lines for value in line.values if value is not None]
    if not xs or not shown:
        return ""
    limit, is_cut = _limit(shown)
    size, symbol = unit_of(limit, units)
    rows = ticks(limit / size)
    first, last = (min(xs), max(xs)) if len(xs) > 1 else (xs[0] - 1, xs[0] + 1)

    def x_of(x: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * (x - first) / ((last - first) or 1.0)

    def y_of(value: float) -> float:
        part = min(value / size / rows[-1], 1.0)
        return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * part

    parts = [*_grid(rows, lambda row: y_of(row * size)), *_x_axis(first, last, x_of, x_label)]
    parts.append(f'<text class="unit" x="{_LEFT - 6}" y="{HEIGHT - 6}" text-anchor="end">{escape(symbol)}</text>')
    for line in sorted(lines, key=lambda line: not line.faint):
        parts += _curve(line, [(x_of(x), value) for x, value in zip(xs, line.values, strict=True)], y_of)
    parts += _hover(xs, lines, units, x_of, x_label)
    note = f"values above {quantity(rows[-1] * size, units)} are cut" if is_cut else ""
    return _figure(title, lines, _svg(title, parts), note)


def _limit(values: Sequence[float]) -> tuple[float, bool]:
    """Returns the largest value to show, and True if there are larger ones."""
    ordered = sorted(values)
    usual = ordered[min(len(ordered) - 1, math.floor(0.98 * len(ordered)))]
    return (usual * 1.25, True) if ordered[-1] > _OUTLIER * usual > 0 else (ordered[-1], False)


def _grid(rows: Sequence[float], y_of: Scale) -> list[str]:
    parts = []
    for row in rows:
        y = y_of(row)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{number(row)}</text>')
    return parts


def _x_axis(first: float, last: float, x_of: Scale, label: str) -> list[str]:
    base = HEIGHT - _BOTTOM
    parts = [f'<line class="axis" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{base}" y2="{base}"/>']
    for x in (tick for tick in ticks(last, 8) if first <= tick <= last):
        parts.append(f'<text x="{x_of(x):.1f}" y="{base + 14}" text-anchor="middle">{number(x)}</text>')
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    return [*parts, f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{escape(label)}</text>']


def _curve(line: Line, points: Sequence[tuple[float, float | None]], y_of: Scale) -> list[str]:
    runs: list[list[str]] = [[]]
    for x, value in points:
        if value is None:
            runs.append([])
        else:
            runs[-1].append(f"{x:.1f},{y_of(value):.1f}")
    parts, base = [], HEIGHT - _BOTTOM
    for run in (run for run in runs if run):
        if line.filled:
            ends = f"{run[-1].partition(',')[0]},{base} {run[0].partition(',')[0]},{base}"
            parts.append(f'<polygon class="area c{line.color}" points="{" ".join(run)} {ends}"/>')
        if len(run) == 1:
            left, top = run[0].split(",")
            parts.append(f'<circle class="dot c{line.color}" cx="{left}" cy="{top}" r="3"/>')
        kind = "faint" if line.faint else "line"
        parts.append(f'<polyline class="{kind} c{line.color}" points="{" ".join(run)}"/>')
    return parts


def _hover(xs: Sequence[float], lines: Sequence[Line], units: Units, x_of: Scale, label: str) -> list[str]:
    """Returns a strip for each point, which shows its values while the pointer is there."""
    places = [x_of(x) for x in xs]
    edges = [_LEFT, *((a + b) / 2 for a, b in pairwise(places)), WIDTH - _RIGHT]
    parts = []
    for i, x in enumerate(xs):
        values = "".join(f"\n{line.name}: {quantity(line.values[i], units)}" for line in lines)
        parts.append(
            f'<rect class="hover" x="{edges[i]:.1f}" y="{_TOP}" width="{max(0.0, edges[i + 1] - edges[i]):.1f}" '
            f'height="{HEIGHT - _TOP - _BOTTOM}"><title>{escape(f"{label} {number(x)}{values}")}</title></rect>'
        )
    return parts


def _svg(title: str, parts: Sequence[str]) -> str:
    label = escape(title, quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _figure(title: str, lines: Sequence[Line], svg: str, note: str) -> str:
    names = "".join(
        f'<span class="key"><span class="swatch b{line.color}{" light" if line.faint else ""}"></span>'
        f"{escape(line.name)}</span>"
        for line in lines
    )
    below = f'<p class="note">{escape(note)}</p>' if note else ""
    legend = f'<div class="legend">{names}</div>'
    return f"<figure><figcaption>{escape(title)}</figcaption>{legend}{svg}{below}</figure>"


def bar(part: float, of: float, color: int, whole: float = 0.0) -> str:
    """Returns a bar as wide as `of`, of which `part` is colored; up to `whole` the color is pale."""
    pale, full = (100.0 * min(1.0, value / of) if of > 0 else 0.0 for value in (whole, part))
    return (
        '<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="pale c{color}" width="{pale:.2f}" height="10"/>'
        f'<rect class="fill c{color}" width="{full:.2f}" height="10"/></svg>'
    )
