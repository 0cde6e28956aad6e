#!/usr/bin/env python3
"""Says in a line what a training run did to the validation loss.

usage: result.py METRICS STEPS EPOCH       EPOCH: steps that an epoch takes
"""

import json
import sys
from pathlib import Path


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    metrics, steps, epoch = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    entries = [json.loads(line) for line in metrics.read_text().splitlines()]
    losses = [(entry["step"], entry["val_loss"]) for entry in entries if "val_loss" in entry]
    if len(losses) < 2 or losses[-1][0] != steps:
        sys.exit(f"demo: {metrics} has no validation loss after step {steps}: remove {metrics.parent}, run ./run demo again")
    (_, before), (_, after) = losses[0], losses[-1]
    seconds = sum(entry.get("seconds", 0) + entry.get("val_seconds", 0) for entry in entries)
    print(
        f"validation loss {before:.3f} -> {after:.3f} ({100 * (after / before - 1):+.0f} %) in {steps} steps, "
        f"{steps / epoch:.2f} of an epoch, {seconds:.0f} s"
    )


if __name__ == "__main__":
    main()
