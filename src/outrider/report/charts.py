"""Charts as SVG text: pure functions from numbers to a drawing. Colours are classes that the page's style sheet sets.

Classes: `series-0` … `series-7` (a colour each), `grid`, `axis`, `label`, `title`, `reference`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from xml.etree import ElementTree as ET

from outrider.core.results import Interval
from outrider.report.figures import number, visible
from outrider.report.scales import Point, Scale, is_drawable, thinned, tick_label, ticks, value_range, whole_ticks

_WIDTH: Final = 420
_HEIGHT: Final = 250
_LEFT, _RIGHT, _BOTTOM = 58, 12, 40
_LEGEND_TOP, _LEGEND_LINE, _LETTER = 38, 17, 6.6
_NUM_COLOURS: Final = 8
_NUM_TICKS: Final = 5
_MOST_POINTS: Final = 300


@dataclass(frozen=True)
class Line:
    """One line of a line chart; `marked` draws a dot at each point, for points that are few."""

    name: str
    points: Sequence[Point]
    marked: bool = False


@dataclass(frozen=True)
class Bars:
    """One series of a bar chart, a value for each group; None where there is no data."""

    name: str
    values: Sequence[float | None]


def bar_chart(title: str, description: str, *, x_label: str, y_label: str, groups: Sequence[str], series: Sequence[Bars]) -> str:
    """Grouped bars of shares in [0, 1]; a value outside is drawn at the nearer end and named in its hover text."""
    svg = _drawing(title, description, _HEIGHT)
    top = _legend(svg, [bars.name for bars in series])
    y = Scale(0.0, 1.0, _HEIGHT - _BOTTOM, top)
    _y_axis(svg, y, y_label)
    _text(svg, (_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 6, x_label, "middle")
    if not groups or not series:
        _text(svg, _WIDTH / 2, _HEIGHT / 2, "no data", "middle")
        return _written(svg)
    group_width = (_WIDTH - _RIGHT - _LEFT) / len(groups)
    bar_width = min(34.0, group_width * 0.8 / len(series))
    every = max(1, round(22 / group_width))
    for g, group in enumerate(groups):
        centre = _LEFT + (g + 0.5) * group_width
        if g % every == 0:
            _text(svg, centre, y.start + 15, _cut(group, 6), "middle")
        for s, bars in enumerate(series):
            value = bars.values[g] if g < len(bars.values) else None
            left = centre + (s - len(series) / 2) * bar_width
            _bar(svg, y, value, left, bar_width, s, f"{x_label} {group}, {bars.name}")
    return _written(svg)


def _bar(svg: ET.Element, y: Scale, value: float | None, left: float, width: float, colour: int, name: str) -> None:
    if value is None or not is_drawable(value):
        return
    top = y.at(value)
    bar = _rect(svg, left + width * 0.04, top, width * 0.92, y.start - top, f"series-{colour % _NUM_COLOURS}")
    _hover(bar, f"{name}: {number(value, 3)}")
    if width >= 24:
        _text(svg, left + width / 2, top - 4, number(value), "middle", "label value")


def line_chart(title: str, description: str, *, x_label: str, y_label: str, lines: Sequence[Line]) -> str:
    """Lines over a shared x axis that shows 0. Values that are not finite are left out; long lines are drawn as means of neighbours."""
    svg = _drawing(title, description, _HEIGHT)
    top = _legend(svg, [line.name for line in lines])
    drawn = [thinned([p for p in line.points if is_drawable(p[0]) and is_drawable(p[1])], _MOST_POINTS) for line in lines]
    x = Scale(*value_range([0.0, *(p[0] for points in drawn for p in points)]), _LEFT, _WIDTH - _RIGHT - 6)
    y_range = value_range(p[1] for points in drawn for p in points)
    y = Scale(*whole_ticks(*y_range, _NUM_TICKS), _HEIGHT - _BOTTOM, top)
    if not any(drawn):
        _text(svg, _WIDTH / 2, _HEIGHT / 2, "no data", "middle")
        return _written(svg)
    _y_axis(svg, y, y_label)
    _x_axis(svg, x, _HEIGHT - _BOTTOM, x_label)
    for colour, (line, points) in enumerate(zip(lines, drawn, strict=True)):
        _line(svg, x, y, line, points, colour % _NUM_COLOURS)
    return _written(svg)


def _line(svg: ET.Element, x: Scale, y: Scale, line: Line, points: Sequence[Point], colour: int) -> None:
    places = " ".join(f"{x.at(px)},{y.at(py)}" for px, py in points)
    if len(points) > 1:
        ET.SubElement(svg, "polyline", {"class": f"stroke series-{colour}", "points": places})
    if line.marked or len(points) == 1:
        for px, py in points:
            dot = ET.SubElement(svg, "circle", {"class": f"series-{colour}", "cx": f"{x.at(px)}", "cy": f"{y.at(py)}", "r": "3.2"})
            _hover(dot, f"{line.name}, {px:,.0f}: {number(py, 4)}")


def interval_chart(title: str, description: str, *, x_label: str, rows: Sequence[tuple[str, Interval]], reference: float) -> str:
    """One interval a row, and a dashed line at the reference value."""
    rows = [(name, interval) for name, interval in rows if all(map(is_drawable, (interval.low, interval.value, interval.high)))]
    height = 40 + 30 * max(1, len(rows)) + _BOTTOM
    svg = _drawing(title, description, height)
    if not rows:
        _text(svg, _WIDTH / 2, height / 2, "no data", "middle")
        return _written(svg)
    left = min(150.0, 24 + _LETTER * max(len(_cut(name, 18)) for name, _ in rows))
    low, high = value_range([reference, *(end for _, i in rows for end in (i.low, i.value, i.high))])
    x = Scale(low, high, left + 8, _WIDTH - _RIGHT - 8)
    bottom = height - _BOTTOM
    _x_axis(svg, x, bottom, x_label, left=left)
    _segment(svg, x.at(reference), 34, x.at(reference), bottom, "reference")
    for index, (name, interval) in enumerate(rows):
        middle = 51.0 + 30 * index
        _text(svg, left - 6, middle + 4, _cut(name, 18), "end")
        row = ET.SubElement(svg, "g", {"class": "series-0"})
        _hover(row, f"{name}: {number(interval.value)}, from {number(interval.low)} to {number(interval.high)}")
        _segment(row, x.at(interval.low), middle, x.at(interval.high), middle, "stroke series-0")
        for end in (interval.low, interval.high):
            _segment(row, x.at(end), middle - 5, x.at(end), middle + 5, "stroke series-0")
        ET.SubElement(row, "circle", {"class": "series-0", "cx": f"{x.at(interval.value)}", "cy": f"{middle}", "r": "4.5"})
    return _written(svg)


def _drawing(title: str, description: str, height: float) -> ET.Element:
    svg = ET.Element("svg", {"viewBox": f"0 0 {_WIDTH} {height:g}", "role": "img", "aria-label": visible(title)})
    _hover(svg, title)
    ET.SubElement(svg, "desc").text = visible(description)
    _text(svg, 4, 17, _cut(title, 52), "start", "title")
    return svg


def _legend(svg: ET.Element, names: Sequence[str]) -> float:
    """Draw the legend below the title, in as many lines as it needs; returns where the plot may begin."""
    x, y = 8.0, float(_LEGEND_TOP)
    for colour, (name, width) in enumerate(_legend_widths(names)):
        if x > 8 and x + width > _WIDTH - 4:
            x, y = 8.0, y + _LEGEND_LINE
        if y > _HEIGHT / 2:  # a legend that takes half the drawing says no more
            break
        _rect(svg, x, y - 9, 11, 11, f"series-{colour % _NUM_COLOURS}")
        _text(svg, x + 15, y, name, "start")
        x += width
    return y + 22


def _legend_widths(names: Sequence[str]) -> Iterator[tuple[str, float]]:
    for name in names:
        shown = _cut(name, 28)
        yield shown, 30 + _LETTER * len(shown)


def _y_axis(svg: ET.Element, y: Scale, label: str) -> None:
    values, step = ticks(y.low, y.high, _NUM_TICKS)
    for value in values:
        _segment(svg, _LEFT, y.at(value), _WIDTH - _RIGHT, y.at(value), "grid")
        _text(svg, _LEFT - 6, y.at(value) + 4, tick_label(value, step), "end")
    middle = (y.start + y.end) / 2
    text = _text(svg, 12, middle, label, "middle")
    text.set("transform", f"rotate(-90 12 {middle:g})")


def _x_axis(svg: ET.Element, x: Scale, bottom: float, label: str, left: float = _LEFT) -> None:
    values, step = ticks(x.low, x.high, _NUM_TICKS)
    _segment(svg, left, bottom, _WIDTH - _RIGHT, bottom, "axis")
    for value in values:
        _segment(svg, x.at(value), bottom, x.at(value), bottom + 4, "axis")
        _text(svg, x.at(value), bottom + 16, tick_label(value, step), "middle")
    _text(svg, (left + _WIDTH - _RIGHT) / 2, bottom + 34, label, "middle")


def _text(parent: ET.Element, x: float, y: float, text: str, anchor: str, css_class: str = "label") -> ET.Element:
    element = ET.SubElement(parent, "text", {"class": css_class, "x": f"{x:.2f}", "y": f"{y:.2f}", "text-anchor": anchor})
    element.text = visible(text)
    return element


def _segment(parent: ET.Element, x1: float, y1: float, x2: float, y2: float, css_class: str) -> None:
    ends = {"x1": f"{x1:.2f}", "y1": f"{y1:.2f}", "x2": f"{x2:.2f}", "y2": f"{y2:.2f}"}
    ET.SubElement(parent, "line", {"class": css_class, **ends})


def _rect(parent: ET.Element, x: float, y: float, width: float, height: float, css_class: str) -> ET.Element:
    place = {"x": f"{x:.2f}", "y": f"{y:.2f}", "width": f"{width:.2f}", "height": f"{height:.2f}"}
    return ET.SubElement(parent, "rect", {"class": css_class, **place})


def _hover(parent: ET.Element, text: str) -> None:
    ET.SubElement(parent, "title").text = visible(text)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _written(svg: ET.Element) -> str:
    return ET.tostring(svg, encoding="unicode")
