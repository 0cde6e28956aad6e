#!/usr/bin/env python3
"""Makes tokenizers/: two small tokenizers of the kinds that models have, trained on the text below.

byte_level: as GPT-2, Llama 3, Qwen and SmolLM2 have it. metaspace: as Llama 2 has it, with bytes as a fallback.
"""

from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXT = """Hello, how are you today? Hello there. The answer is yes, the answer is no; a question has an answer.
Say hello to the cat and the dog, and tell me what the weather is like in the north. It is raining there, and cold.
You are a helpful assistant. What is two plus two? Two plus two is four. def add(a, b): return a + b. Help, help, held.
user assistant system tool name arguments function description parameters type object string city weather get_weather
"""
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>", "<|begin_of_text|>", "<|start_header_id|>",
           "<|end_header_id|>", "<|eot_id|>", "<|User|>", "<|Assistant|>", "<unk>"]  # fmt: skip
PLAIN = ["<think>", "</think>", "<tool_call>", "</tool_call>"]


def add_tokens(tokenizer):
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in PLAIN])


def byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    add_tokens(tokenizer)
    # As Llama 3: offsets without spaces, and a token that starts every text.
    start = "<|begin_of_text|>"
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=True),
            processors.TemplateProcessing(
                single=f"{start} $A", special_tokens=[(start, tokenizer.token_to_id(start))]
            ),
        ]
    )
    return tokenizer


def metaspace():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT.split(), trainer)
    add_tokens(tokenizer)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


if __name__ == "__main__":
    folder = Path(__file__).resolve().parent / "tokenizers"
    for make in (byte_level, metaspace):
        make().save(str(folder / f"{make.__name__}.json"), pretty=False)
