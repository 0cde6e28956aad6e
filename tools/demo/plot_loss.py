#!/usr/bin/env python3
"""Draws the losses of a training run, from its metrics.jsonl, as an SVG.

usage: plot_loss.py METRICS SVG TITLE
"""

import json
import math
import sys
from html import escape
from pathlib import Path

WIDTH, HEIGHT = 860, 480
LEFT, RIGHT, TOP, BOTTOM = 72, 24, 64, 60  # margins of the plot
TRAIN, VALID, INK, GRID = "#5b8def", "#c2410c", "#1f2937", "#e5e7eb"


def read(path):
    """([(step, training loss)], [(step, validation loss)])"""
    train, valid = [], []
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        if "loss" in entry:
            train.append((entry["step"], entry["loss"]))
        if "val_loss" in entry:
            valid.append((entry["step"], entry["val_loss"]))
    return train, valid


def ticks(low, high, most):
    """Round numbers from at or below `low` to at or above `high`, at most some `most` of them."""
    rough = max(high - low, 1e-9) / most
    unit = 10 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [step * i for i in range(first, max(last, first + 1) + 1)]


def labels(values):
    """The values as text, with as many decimals as tell them apart."""
    step = values[1] - values[0]
    return [(value, f"{value:.{max(0, -math.floor(math.log10(step) + 1e-9))}f}") for value in values]


class Drawing:
    def __init__(self, x_ticks, y_ticks):
        self.x_ticks, self.y_ticks = x_ticks, y_ticks
        self.parts = []

    def x(self, step):
        return LEFT + (step - self.x_ticks[0]) / (self.x_ticks[-1] - self.x_ticks[0]) * (WIDTH - LEFT - RIGHT)

    def y(self, loss):
        share = (loss - self.y_ticks[0]) / (self.y_ticks[-1] - self.y_ticks[0])
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    def line(self, x1, y1, x2, y2, color, width=1):
        self.parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}" stroke-width="{width}"/>'
        )

    def text(self, x, y, text, size=14, anchor="middle", color=INK, more=""):
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{color}"{more}>'
            f"{escape(text)}</text>"
        )

    def axes(self):
        for value, label in labels(self.y_ticks):
            self.line(LEFT, self.y(value), WIDTH - RIGHT, self.y(value), GRID)
            self.text(LEFT - 10, self.y(value) + 5, label, anchor="end")
        bottom = HEIGHT - BOTTOM
        for value, label in labels(self.x_ticks):
            self.line(self.x(value), bottom, self.x(value), bottom + 5, INK)
            self.text(self.x(value), bottom + 22, label)
        self.line(LEFT, bottom, WIDTH - RIGHT, bottom, INK)
        self.text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, "optimizer step")
        middle = (TOP + bottom) / 2
        self.text(20, middle, "loss (nats a target token)", more=f' transform="rotate(-90 20 {middle:.1f})"')

    def curve(self, points, color, width, radius):
        path = " ".join(f"{self.x(step):.1f},{self.y(loss):.1f}" for step, loss in points)
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="{width}"/>')
        for step, loss in points:
            self.parts.append(f'<circle cx="{self.x(step):.1f}" cy="{self.y(loss):.1f}" r="{radius}" fill="{color}"/>')

    def values(self, points, color):
        """The numbers at the first and the last point, kept inside the plot."""
        for (step, loss), anchor in ((points[0], "start"), (points[-1], "end")):
            shift = 10 if anchor == "start" else -2
            for ink, more in (("white", ' stroke="white" stroke-width="4"'), (color, "")):  # on a white edge
                self.text(self.x(step) + shift, self.y(loss) - 11, f"{loss:.3f}", 16, anchor, ink, more)

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


def draw(train, valid, title):
    losses = [loss for _, loss in train + valid]
    steps = [step for step, _ in train + valid]
    highest = max(losses) + 0.05 * (max(losses) - min(losses))  # room for a number above the first point
    drawing = Drawing(ticks(0, max(steps), 10), ticks(min(losses), highest, 6))
    drawing.axes()
    drawing.text(LEFT, 26, title, 17, "start", more=' font-weight="bold"')
    entries = []
    if train:
        drawing.curve(train, TRAIN, 1.5, 2.5)
        entries.append(("training, each step's rows", TRAIN))
    if valid:
        drawing.curve(valid, VALID, 2.5, 5)
        drawing.values(valid, VALID)
        entries.append(("validation", VALID))
    drawing.legend(entries)
    return drawing.svg()


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    train, valid = read(Path(sys.argv[1]))
    if not train and not valid:
        sys.exit(f"plot_loss.py: {sys.argv[1]} has no losses yet: train first")
    Path(sys.argv[2]).write_text(draw(train, valid, sys.argv[3]))


if __name__ == "__main__":
    main()
