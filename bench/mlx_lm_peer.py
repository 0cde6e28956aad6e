#!/usr/bin/env python3
"""What bench/mlx_lm_full has PyPI's MLX and mlx-lm do, in a process of their own.

usage: mlx_lm_peer.py lora FLAG...          mlx_lm.lora as it is, which tells "STEP {...}" of each iteration
       mlx_lm_peer.py matmul                how fast MLX's matrix products are, and the BLAS libraries in the process
       mlx_lm_peer.py float32 MODEL OUTPUT  a checkpoint with its weights in f32
"""

import json
import shutil
import sys
import time
from pathlib import Path

import mlx.core as mx


def lora():
    """Runs mlx_lm.lora. Two things are added, both outside the timed part: the real tokens of each batch are counted
    (its own count has a padding token a row), and its training callback prints them with the iteration's seconds."""
    import mlx_lm.lora
    import mlx_lm.tuner.trainer as trainer

    batches = []  # (target tokens, positions computed) of each batch handed out
    iterate_batches = trainer.iterate_batches

    def counted(*positional, **named):
        for tokens, lengths in iterate_batches(*positional, **named):
            batches.append((sum(length - 1 for _, length in lengths.tolist()), tokens[:, 1:].size))
            yield tokens, lengths

    class Callback:
        def on_train_loss_report(self, report):
            targets, positions = batches[report["iteration"] - 1]
            step = {
                "target_tokens": targets,
                "positions": positions,
                "seconds": 1 / report["iterations_per_second"],
                "loss": report["train_loss"],
            }
            print("STEP", json.dumps(step), flush=True)

        def on_val_loss_report(self, report):
            pass

    train = trainer.train
    mlx_lm.lora.train = lambda **named: train(**named, iterate_batches=counted)
    mlx_lm.lora.get_reporting_callbacks = lambda *_, **__: Callback()
    mlx_lm.lora.main()


def matmul(size=1024, repeats=5):
    x = mx.random.normal((size, size))
    mx.eval(x @ x)
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        mx.eval(x @ x)
        best = min(best, time.perf_counter() - start)
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    blas = sorted(Path(path).name for path in mapped if "blas" in Path(path).name)
    print(json.dumps({"gflops": 2 * size**3 / best / 1e9, "blas": blas}))


def float32(model, output):
    shutil.copytree(model, output, dirs_exist_ok=True)
    weights = mx.load(str(output / "model.safetensors"))
    weights = {name: weight.astype(mx.float32) for name, weight in weights.items()}
    mx.save_safetensors(str(output / "model.safetensors"), weights, {"format": "pt"})
    config = json.loads((output / "config.json").read_text())
    config["torch_dtype"] = "float32"
    (output / "config.json").write_text(json.dumps(config, indent=2))


def main():
    what, rest = sys.argv[1:2], sys.argv[2:]
    if what == ["lora"]:
        sys.argv[1:] = rest
        lora()
    elif what == ["matmul"]:
        matmul()
    elif what == ["float32"] and len(rest) == 2:
        float32(Path(rest[0]), Path(rest[1]))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
