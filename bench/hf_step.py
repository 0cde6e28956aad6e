"""A full training step of Hugging Face's transformers on a GPU, to compare bench_train_step with: random weights of the
same shape, SGD, one row. One JSON object a line; memory is PyTorch's allocator's peak.

    python3 bench/hf_step.py CONFIG.json --tokens 2048 --precision fp32|tf32|bf16 [--steps N]
"""
import argparse
import json
import time

import torch
from transformers import AutoConfig, AutoModelForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("config")
parser.add_argument("--tokens", type=int, default=2048)
parser.add_argument("--precision", choices=["fp32", "tf32", "bf16"], default="tf32")
parser.add_argument("--steps", type=int, default=4)
options = parser.parse_args()

torch.backends.cuda.matmul.allow_tf32 = options.precision == "tf32"
dtype = torch.bfloat16 if options.precision == "bf16" else torch.float32
fields = json.load(open(options.config))
fields.pop("torch_dtype", None)  # the precision is asked for
config = AutoConfig.for_model(fields.pop("model_type"), **fields)
torch.set_default_dtype(dtype)
with torch.device("cuda"):
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=dtype)
model.train()
model.config.use_cache = False
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
ids = torch.randint(0, config.vocab_size, (1, options.tokens), device="cuda")
torch.cuda.reset_peak_memory_stats()
for step in range(1, options.steps + 1):
    torch.cuda.synchronize()
    start = time.perf_counter()
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    print(json.dumps({"side": "transformers", "precision": options.precision, "step": step, "seconds": seconds,
                      "tokens_per_s": options.tokens / seconds, "loss": loss.item(),
                      "peak_gib": torch.cuda.max_memory_allocated() / 2**30}), flush=True)
