#!/usr/bin/env python3
"""PyPI's mlx-lm loads what `trunkline train` writes, and its greedy continuation is ours.

usage: mlx_lm_test.py TRUNKLINE GOLDEN      GOLDEN: the folder of golden cases, whose models are trained a little

Each case's model gets a tokenizer of single characters and a chat template, and learns four rows by heart; then both
programs answer a prompt of these, whose answer is known, and one that is not among them.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

from mlx_lm import generate, load
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

CASES = ["llama-smol", "llama-linear", "llama3-rope", "qwen2-bias", "qwen3-tied", "qwen3-untied", "qwen3-yarn"]
SPECIAL = ["<pad>", "<bos>", "<end>"]  # ids 0, 1, 2, as the cases' configs have them
CHARACTERS = ["Ġ"] + [chr(code) for code in range(33, 127)]  # a space and the other printable ones, as byte-level BPE has them
TEMPLATE = (
    "<bos>{% for message in messages %}{{ message['role'][0] }}:{{ message['content'] }}<end>{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)
ROWS = [("count up", "0123456789"), ("the abc", "abcdefghijkl"), ("say hello", "hello, world"), ("twice", "no no no no")]
LEARNED, UNSEEN = ROWS[1][0], "the abc, then count"  # prompts
TOKENS = 24


def write_tokenizer(directory):
    vocabulary = {token: i for i, token in enumerate(SPECIAL + CHARACTERS)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    # Byte-level: transformers gives a Qwen2 model a pre-tokenizer of this kind whatever tokenizer.json says.
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<bos>",
        "eos_token": "<end>",
        "pad_token": "<pad>",
        "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


def name_rope_as_before(directory):
    """rope_parameters under the names that they had before transformers 5: mlx-lm's Llama and Qwen2 know no others."""
    path = directory / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    path.write_text(json.dumps(config))


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def check(case, trunkline, golden, scratch):
    model, data, output = scratch / case / "model", scratch / case / "data", scratch / case / "output"
    shutil.copytree(golden / case / "model", model, copy_function=shutil.copyfile)
    write_tokenizer(model)
    name_rope_as_before(model)
    data.mkdir()
    rows = [json.dumps({"prompt": prompt, "completion": completion}) for prompt, completion in ROWS]
    (data / "train.jsonl").write_text("\n".join(rows) + "\n")

    train = [trunkline, "train", "--model", model, "--data", data, "--output", output]
    run(*train, "--batch-size", "4", "--iters", "60", "--learning-rate", "1e-2", "--save-every", "1000")
    loaded, tokenizer = load(str(output))
    right = True
    for prompt in (LEARNED, UNSEEN):
        ours = run(trunkline, "generate", "--model", output, "--prompt", prompt, "--max-tokens", str(TOKENS))[:-1]
        ids = tokenizer.apply_chat_template([{"role": "user", "content": prompt}], add_generation_prompt=True)
        theirs = generate(loaded, tokenizer, ids, max_tokens=TOKENS)
        same = ours == theirs
        learned = prompt != LEARNED or ours == dict(ROWS)[prompt]
        verdict = "DIFFERENT" if not same else "equal" if learned else "NOT LEARNED"
        print(f"{case}: {verdict}: to {prompt!r} trunkline says {ours!r}, mlx-lm {theirs!r}", flush=True)
        right = right and same and learned
    return right


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    trunkline, golden = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["XDG_CACHE_HOME"] = scratch
        results = [check(case, trunkline, golden, Path(scratch)) for case in CASES]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
