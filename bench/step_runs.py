"""Runs of `trunkline bench step` for the programs beside this file."""

import json
import os
from pathlib import Path

# The shape that the programs train, a Qwen3-8B made 16 times narrower: 36 layers, head and embedding with 7.6 % of the
# parameters each.
SHAPE = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 36,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 9496,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "dtype": "float32",
}


def cores():
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def threads_for(ranks):
    """Of each rank's computation: fewer than its share of the cores."""
    return max(1, cores() // ranks - 1)


def lanes_beside(threads, ranks, cables):
    """Lanes of each rank: as many as by default, as far as its share of the cores has room for them beside `threads`."""
    return max(1, min(max(cables, 4), cores() // ranks - threads))


def compute_on(threads):
    """The runs that follow compute on so many threads a rank."""
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
        os.environ[variable] = str(threads)


def model_flags(folder, rows, tokens, layers):
    """For real computation; the model's shape is written into `folder`."""
    config = Path(folder) / "config.json"
    config.write_text(json.dumps({**SHAPE, "num_hidden_layers": layers}, indent=1))
    return ["--model", config, "--rows", rows, "--tokens", tokens]


def emulated_flags(layers, forward, backward, update, gradients, head=0, embedding=0):
    """Seconds and bytes."""
    times = [("--forward-ms", forward), ("--backward-ms", backward), ("--update-ms", update)]
    sizes = [("--gradient-bytes", gradients), ("--head-bytes", head), ("--embedding-bytes", embedding)]
    flags = ["--layers", layers]
    for name, seconds in times:
        flags += [name, f"{1e3 * seconds:g}"]
    for name, size in sizes:
        flags += [name, round(size)]
    return flags
