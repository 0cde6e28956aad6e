#!/usr/bin/env python3
"""What transformers itself makes of conversations and texts.

usage: reference.py DATE QUESTIONS ANSWERS
DATE: YYYY-MM-DD, what templates are told as the time. QUESTIONS: JSONL of {"model": directory, "messages", "tools",
"prompt": add a generation prompt} or {"model", "plain": text}. ANSWERS: for each a line {"text" (null: refused), "ids",
"mask" (tokens of the spans that {% generation %} marks)} or {"ids", "decoded", "decoded_all"}.
"""

import datetime
import functools
import json
import logging
import sys

import transformers
from transformers.utils import chat_template_utils

logging.getLogger("transformers").setLevel(logging.ERROR)


@functools.cache
def tokenizer_of(model):
    return transformers.PreTrainedTokenizerFast.from_pretrained(model)


def freeze(date):
    class Frozen(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls.strptime(date, "%Y-%m-%d")

    chat_template_utils.datetime = Frozen


def answer(question):
    tokenizer = tokenizer_of(question["model"])
    if "plain" in question:
        ids = tokenizer.encode(question["plain"])
        return {"ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=True), "decoded_all": tokenizer.decode(ids)}
    apply = functools.partial(
        tokenizer.apply_chat_template,
        question["messages"],
        tools=question["tools"],
        add_generation_prompt=question["prompt"],
    )
    try:
        text = apply(tokenize=False)
    except Exception as error:
        return {"text": None, "error": str(error)}
    tokens = apply(return_dict=True, return_assistant_tokens_mask=True)
    return {"text": text, "ids": tokens["input_ids"], "mask": tokens["assistant_masks"]}


def main():
    date, questions, answers = sys.argv[1:]
    freeze(date)
    with open(questions, encoding="utf-8") as source, open(answers, "w", encoding="utf-8") as target:
        for line in source:
            print(json.dumps(answer(json.loads(line))), file=target)


if __name__ == "__main__":
    main()
