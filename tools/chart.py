"""Line charts as SVG."""

import math
from html import escape

WIDTH, HEIGHT = 860, 480
LEFT, RIGHT, TOP, BOTTOM = 72, 24, 64, 60  # margins of the plot
INK, GRID = "#1f2937", "#e5e7eb"
COLORS = ["#5b8def", "#c2410c", "#15803d", "#7e22ce", "#b45309", "#0e7490", "#be185d", "#4b5563"]


class Linear:
    """An axis with round numbers from at or below `low` to at or above `high`, at most some `most` of them."""

    def __init__(self, low, high, most):
        rough = max(high - low, 1e-9) / most
        unit = 10 ** math.floor(math.log10(rough))
        step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough * (1 - 1e-9))
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        values = [step * i for i in range(first, max(last, first + 1) + 1)]
        decimals = max(0, -math.floor(math.log10(step) + 1e-9))  # as many as tell them apart
        self.ticks = [(value, f"{value:.{decimals}f}") for value in values]

    def share(self, value):
        low, high = self.ticks[0][0], self.ticks[-1][0]
        return (value - low) / (high - low)


class Log:
    """An axis with powers of `base` from at or below `low` to at or above `high`, both above 0."""

    def __init__(self, low, high, base=10, text=lambda value: f"{value:g}", most=11):
        first, last = math.floor(math.log(low, base) + 1e-9), math.ceil(math.log(high, base) - 1e-9)
        last = max(last, first + 1)
        stride = math.ceil((last - first) / most)
        self.low, self.high = first * math.log(base), last * math.log(base)
        self.ticks = [(base**power, text(base**power)) for power in range(first, last + 1, stride)]

    def share(self, value):
        return (math.log(value) - self.low) / (self.high - self.low)


def size_text(size):
    """Bytes with the units of the benchmarks' options: 64K."""
    for unit, power in (("G", 30), ("M", 20), ("K", 10)):
        if size >= 1 << power and size % (1 << power) == 0:
            return f"{size >> power}{unit}"
    return f"{size:g}"


class Chart:
    def __init__(self, title, x_axis, y_axis, x_name, y_name):
        self.x_axis, self.y_axis = x_axis, y_axis
        self.parts = []
        self.text(LEFT, 26, title, 17, "start", more=' font-weight="bold"')
        self.axes(x_name, y_name)

    def x(self, value):
        return LEFT + self.x_axis.share(value) * (WIDTH - LEFT - RIGHT)

    def y(self, value):
        return HEIGHT - BOTTOM - self.y_axis.share(value) * (HEIGHT - TOP - BOTTOM)

    def line(self, x1, y1, x2, y2, color, width=1):
        self.parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}" stroke-width="{width}"/>'
        )

    def text(self, x, y, text, size=14, anchor="middle", color=INK, more=""):
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{color}"{more}>'
            f"{escape(text)}</text>"
        )

    def axes(self, x_name, y_name):
        bottom = HEIGHT - BOTTOM
        for value, label in self.y_axis.ticks:
            self.line(LEFT, self.y(value), WIDTH - RIGHT, self.y(value), GRID)
            self.text(LEFT - 10, self.y(value) + 5, label, anchor="end")
        for value, label in self.x_axis.ticks:
            self.line(self.x(value), bottom, self.x(value), bottom + 5, INK)
            self.text(self.x(value), bottom + 22, label)
        self.line(LEFT, bottom, WIDTH - RIGHT, bottom, INK)
        self.text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, x_name)
        middle = (TOP + bottom) / 2
        self.text(20, middle, y_name, more=f' transform="rotate(-90 20 {middle:.1f})"')

    def curve(self, points, color, width=2, radius=3):
        path = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="{width}"/>')
        for x, y in points:
            self.parts.append(f'<circle cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="{radius}" fill="{color}"/>')

    def mark(self, x, y, color, name):
        """A cross with its name beside it: a figure of somebody else."""
        left, top = self.x(x), self.y(y)
        self.line(left - 5, top - 5, left + 5, top + 5, color, 2)
        self.line(left - 5, top + 5, left + 5, top - 5, color, 2)
        for ink, more in (("white", ' stroke="white" stroke-width="4"'), (color, "")):  # on a white edge
            self.text(left - 8, top + 4, name, 12, "end", ink, more)

    def values(self, points, color):
        """The numbers at the first and the last point, kept inside the plot."""
        for (x, y), anchor in ((points[0], "start"), (points[-1], "end")):
            shift = 10 if anchor == "start" else -2
            for ink, more in (("white", ' stroke="white" stroke-width="4"'), (color, "")):  # on a white edge
                self.text(self.x(x) + shift, self.y(y) - 11, f"{y:.3f}", 16, anchor, ink, more)

    def legend(self, entries):
        x = WIDTH - RIGHT
        for name, color in reversed(entries):
            self.text(x, TOP - 16, name, anchor="end", color=color)
            x -= 7 * len(name) + 8
            self.line(x - 22, TOP - 21, x, TOP - 21, color, 3)
            x -= 40

    def svg(self):
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
            'font-family="Helvetica, Arial, sans-serif">\n'
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n' + "\n".join(self.parts) + "\n</svg>\n"
        )
