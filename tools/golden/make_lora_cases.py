#!/usr/bin/env python3
"""Records golden adapters: what PEFT computes with LoRA, rsLoRA and DoRA on the base models of tests/golden.

    make_lora_cases.py GOLDEN OUT [NAME...]   needs torch, transformers, peft and safetensors; f32 on the CPU, eager attention

Each case: before/ and after/ (the adapter as PEFT saves it, at first and after three AdamW steps), forward.safetensors,
grads.safetensors, after.safetensors (logits, and those of the merged model), case.json.
"""
import json
import pathlib
import sys

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

# name: (base, arguments of LoraConfig)
CASES = {
    "lora-all-linear-biases": ("llama-biases", dict(r=3, lora_alpha=5, target_modules="all-linear")),
    "lora-patterns": ("qwen2-bias", dict(r=4, lora_alpha=8, target_modules=ALL, exclude_modules=["k_proj"],
                                         rank_pattern={"down_proj": 2, r"layers\.1\.self_attn\.q_proj": 6},
                                         alpha_pattern={"o_proj": 3})),
    "dora-rslora-regex": ("llama-biases", dict(r=4, lora_alpha=6, use_dora=True, use_rslora=True,
                                               target_modules=r".*layers\.1\..*(q_proj|v_proj|up_proj|down_proj)")),
    "lora-head": ("qwen3-untied", dict(r=4, lora_alpha=8, target_modules=["lm_head", "o_proj"])),
    "lora-embedding": ("qwen3-untied", dict(r=4, lora_alpha=8, target_modules=["embed_tokens", "q_proj"])),
    "lora-embedding-tied": ("qwen3-tied", dict(r=2, lora_alpha=8, target_modules=["embed_tokens", "v_proj"])),
    "dora-head-embedding": ("qwen3-untied", dict(r=2, lora_alpha=4, use_dora=True,
                                                 target_modules=["lm_head", "embed_tokens", "gate_proj"])),
    "dora-last-layer": ("qwen3-tied", dict(r=3, lora_alpha=3, use_dora=True, target_modules=ALL, layers_to_transform=[1],
                                           layers_pattern="layers")),
}


def record(name, golden, out):
    base, arguments = CASES[name]
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    forward = load_file(golden / base / "forward.safetensors")
    ids, labels = forward["input_ids"].long(), forward["labels"].long()
    run = lambda m: m(input_ids=ids, attention_mask=(ids != 0).long(), labels=labels)
    load = lambda: AutoModelForCausalLM.from_pretrained(golden / base / "model", dtype=torch.float32, attn_implementation="eager")
    torch.manual_seed(sum(name.encode()))
    model = peft.get_peft_model(load(), peft.LoraConfig(init_lora_weights=False, task_type="CAUSAL_LM", **arguments))
    model.peft_config["default"].base_model_name_or_path = f"golden/{base}/model"
    for n, p in model.named_parameters():  # small, so that three steps stay well within what is smooth
        if "lora_A" in n or "lora_B" in n or "lora_embedding" in n:
            p.data = 0.05 * torch.randn_like(p)
    model.save_pretrained(folder / "before", save_embedding_layers=False)
    model.train()
    result = run(model)
    result.loss.backward()
    save_file({"logits": result.logits.detach().contiguous()}, folder / "forward.safetensors")
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    save_file({n: p.grad.clone().contiguous() for n, p in trained.items()}, folder / "grads.safetensors")
    optimizer = torch.optim.AdamW(trained.values(), lr=0.01, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = run(model).loss
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        last = run(model)
    losses.append(last.loss.item())
    model.save_pretrained(folder / "after", save_embedding_layers=False)
    merged = peft.PeftModel.from_pretrained(load(), folder / "after").merge_and_unload()
    with torch.no_grad():
        merged_logits = run(merged).logits
    save_file({"logits": last.logits.contiguous(), "merged_logits": merged_logits.contiguous()}, folder / "after.safetensors")
    json.dump(dict(base=base, made_with=f"peft {peft.__version__}, transformers {transformers.__version__}, fp32, eager, cpu",
                   loss=result.loss.item(), losses=losses,
                   optimizer="AdamW lr 0.01, betas 0.9 0.999, eps 1e-8, decoupled weight decay 0.01, 3 steps; inputs and "
                             "labels are the base case's",
                   adapter=arguments, trainable=sum(p.numel() for p in trained.values())),
              open(folder / "case.json", "w"), indent=1)
    for readme in folder.glob("*/README.md"):
        readme.unlink()
    print(name, "loss", losses, "merged differs by", (merged_logits - last.logits).abs().max().item())


def main():
    golden, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    for name in sys.argv[3:] or CASES:
        record(name, golden, out)


if __name__ == "__main__":
    main()
