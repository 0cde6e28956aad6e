#!/usr/bin/env python3
"""Records golden cases: small random checkpoints with what Hugging Face computes on them, in the format of tests/golden.

    make_cases.py OUT [NAME...]        needs torch, transformers and safetensors; f32 on the CPU with eager attention

Each case: model/ (the checkpoint), forward.safetensors, grads.safetensors, after-sgd.safetensors, after-adamw.safetensors, case.json.
"""
import copy
import json
import pathlib
import sys

import torch
import transformers
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

SMALL = dict(hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             vocab_size=157, max_position_embeddings=512, initializer_range=0.05, rms_norm_eps=1e-5,
             bos_token_id=1, eos_token_id=2, pad_token_id=0)
DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 10000.0}


def llama(**changes):
    return LlamaForCausalLM, LlamaConfig(**{**SMALL, "rope_parameters": DEFAULT_ROPE, **changes})


def qwen2(**changes):
    return Qwen2ForCausalLM, Qwen2Config(**{**SMALL, "rope_parameters": DEFAULT_ROPE, **changes})


def qwen3(**changes):
    return Qwen3ForCausalLM, Qwen3Config(**{**SMALL, "head_dim": 12, "rope_parameters": DEFAULT_ROPE, **changes})


# name: (model, rows as their lengths, shard size or None, dtype saved)
CASES = {
    "llama-biases": (llama(attention_bias=True, mlp_bias=True, tie_word_embeddings=False), [29, 11, 29, 3], None, torch.float32),
    "llama3-long": (llama(tie_word_embeddings=True, max_position_embeddings=1024, rope_parameters={
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128}), [300, 40], None, torch.float32),
    "qwen2-untied-bf16": (qwen2(tie_word_embeddings=False, num_hidden_layers=3), [37, 37, 20], "60KB", torch.bfloat16),
    "qwen3-mqa": (qwen3(tie_word_embeddings=False, num_attention_heads=6, num_key_value_heads=1, head_dim=8), [64], None,
                  torch.float32),
    "qwen3-yarn-factors": (qwen3(tie_word_embeddings=True, rope_parameters={
        "rope_type": "yarn", "rope_theta": 1000000.0, "factor": 2.0, "original_max_position_embeddings": 256,
        "beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 0.8}), [120, 77], None, torch.float32),
    "llama-linear-f16": (llama(tie_word_embeddings=False, num_key_value_heads=4, rope_parameters={
        "rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}), [18, 9], None, torch.float16),
}
OPTIMIZERS = {
    "sgd": "lr 0.5, 3 steps",
    "sgd-momentum": "lr 0.1, momentum 0.9, weight decay 0.01 (added to the gradient), 3 steps",
    "adamw": "lr 0.01, betas 0.9 0.95, eps 1e-8, decoupled weight decay 0.1 on every parameter, bias correction, 3 steps",
    "adamw-clip": "lr 0.01, betas 0.9 0.999, no weight decay, global gradient norm clipped to 0.5, 3 steps",
}


def optimizer(name, parameters):
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=0.5)
    if name == "sgd-momentum":
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01)
    if name == "adamw":
        return torch.optim.AdamW(parameters, lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    return torch.optim.AdamW(parameters, lr=0.01, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)


def tensors_of(model):
    tied = model.config.tie_word_embeddings
    return {n: p.detach().clone().contiguous() for n, p in model.named_parameters() if not (tied and n == "lm_head.weight")}


def record(name, out):
    (cls, config), lengths, shard, dtype = CASES[name]
    config._attn_implementation = "eager"
    torch.manual_seed(sum(name.encode()))
    model = cls(config).float()
    for n, p in model.named_parameters():  # norms and biases that are not all ones and zeros
        if p.dim() == 1:
            p.data += 0.1 * torch.randn_like(p)
    for p in model.parameters():  # what a checkpoint in `dtype` holds; buffers (the rope frequencies) stay f32
        p.data = p.data.to(dtype).float()
    folder = out / name
    saved = copy.deepcopy(model).to(dtype)
    saved.save_pretrained(folder / "model", **({"max_shard_size": shard} if shard else {}))

    batch, length = len(lengths), max(lengths)
    ids = torch.randint(3, config.vocab_size, (batch, length))
    mask = torch.zeros(batch, length, dtype=torch.long)
    labels = torch.full((batch, length), -100)
    for i, n in enumerate(lengths):
        ids[i, n:] = 0
        mask[i, :n] = 1
        start = min(n - 1, 1 + i * 3)
        labels[i, start:n] = ids[i, start:n]

    run = lambda m: m(input_ids=ids, attention_mask=mask, labels=labels)
    model.train()
    result = run(model)
    result.loss.backward()
    grads = {n: p.grad.clone() for n, p in model.named_parameters() if n in tensors_of(model)}
    norm = torch.sqrt(sum((g.double() ** 2).sum() for g in grads.values())).item()
    save_file(dict(input_ids=ids.int(), labels=labels.int(), logits=result.logits.detach().contiguous(),
                   loss=result.loss.detach().reshape(1)), folder / "forward.safetensors")
    save_file(grads, folder / "grads.safetensors")

    losses = {}
    for kind in OPTIMIZERS:
        m = copy.deepcopy(model)
        opt = optimizer(kind, m.parameters())
        curve = []
        for _ in range(3):
            opt.zero_grad()
            loss = run(m).loss
            curve.append(loss.item())
            loss.backward()
            if kind == "adamw-clip":
                torch.nn.utils.clip_grad_norm_(m.parameters(), 0.5)
            opt.step()
        with torch.no_grad():
            curve.append(run(m).loss.item())
        losses[kind] = curve
        if kind in ("sgd", "adamw"):
            save_file(tensors_of(m), folder / f"after-{kind}.safetensors")

    model.eval()
    prompt = ids[0, :8].tolist()
    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(16):
            tokens.append(model(input_ids=torch.tensor([tokens])).logits[0, -1].argmax().item())
    json.dump(dict(made_with=f"transformers {transformers.__version__}, torch {torch.__version__}, fp32, eager attention, cpu",
                   batch=batch, length=length, target_tokens=int((labels[:, 1:] != -100).sum()), loss=result.loss.item(),
                   grad_norm=norm, losses=losses, greedy=dict(prompt=prompt, tokens=tokens[8:]), optimizers=OPTIMIZERS),
              open(folder / "case.json", "w"), indent=1)
    print(name, "loss", result.loss.item(), "norm", norm)


def main():
    out = pathlib.Path(sys.argv[1])
    for name in sys.argv[2:] or CASES:
        (out / name).mkdir(parents=True, exist_ok=True)
        record(name, out)


if __name__ == "__main__":
    main()
