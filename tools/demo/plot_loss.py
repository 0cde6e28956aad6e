#!/usr/bin/env python3
"""Draws the losses of a training run, from its metrics.jsonl, as an SVG.

usage: plot_loss.py METRICS SVG TITLE
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from chart import Chart, Linear

TRAIN, VALID = "#5b8def", "#c2410c"


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


def draw(train, valid, title):
    losses = [loss for _, loss in train + valid]
    steps = [step for step, _ in train + valid]
    highest = max(losses) + 0.05 * (max(losses) - min(losses))  # room for a number above the first point
    chart = Chart(
        title,
        Linear(0, max(steps), 10),
        Linear(min(losses), highest, 6),
        "optimizer step",
        "loss (nats a target token)",
    )
    entries = []
    if train:
        chart.curve(train, TRAIN, 1.5, 2.5)
        entries.append(("training, each step's rows", TRAIN))
    if valid:
        chart.curve(valid, VALID, 2.5, 5)
        chart.values(valid, VALID)
        entries.append(("validation", VALID))
    chart.legend(entries)
    return chart.svg()


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    train, valid = read(Path(sys.argv[1]))
    if not train and not valid:
        sys.exit(f"plot_loss.py: {sys.argv[1]} has no losses yet: train first")
    Path(sys.argv[2]).write_text(draw(train, valid, sys.argv[3]))


if __name__ == "__main__":
    main()
