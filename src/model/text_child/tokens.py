"""The model's tokenizer, as transformers sets it up."""

import json
import os

import tokenizers

from .files import InputError, read_object, read_text

SPECIAL_NAMES = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"]


def to_added_token(value):
    fields = {key: item for key, item in value.items() if key != "__type"}
    return tokenizers.AddedToken(**fields)


class Tokens:
    """The tokenizer, with the special tokens that the files beside tokenizer.json name."""

    def __init__(self, directory, config):
        self.tokenizer = self.load(os.path.join(directory, "tokenizer.json"), read_text(directory, "tokenizer.json"))
        listed = {
            int(index): to_added_token(value) for index, value in (config.get("added_tokens_decoder") or {}).items()
        }
        values = dict(config)
        if not listed:  # older models: two more files
            values.update(read_object(directory, "special_tokens_map.json"))
            for content, index in read_object(directory, "added_tokens.json").items():
                listed[index] = tokenizers.AddedToken(content)
        named = {key: value for key, value in values.items() if key in SPECIAL_NAMES and value is not None}
        for key, value in values.items():
            if key.endswith("_token") and (isinstance(value, str) or isinstance(value, dict) and "__type" in value):
                named[key] = value
        extra = values.get("extra_special_tokens") or values.get("additional_special_tokens") or []
        if isinstance(extra, dict):
            named.update(extra)
            extra = []
        contents = {token.content: token for token in listed.values()}

        def token_of(value):
            if isinstance(value, dict):
                value = to_added_token({**value, "special": True})
            content = value if isinstance(value, str) else value.content
            return contents.get(content, value)

        named = {key: token_of(value) for key, value in named.items()}
        self.named = {
            key: value if isinstance(value, str) else value.content
            for key, value in sorted(named.items(), key=lambda item: item[0])
        }
        present = self.tokenizer.get_added_tokens_decoder().values()
        alike = {repr(token) for token in present}  # with its flags: a listed token goes before that of tokenizer.json
        missing = [listed[index] for index in sorted(listed) if repr(listed[index]) not in alike]
        known = {token.content for token in [*present, *missing]}
        for token in [*named.values(), *map(token_of, extra)]:
            content = token if isinstance(token, str) else token.content
            if content not in known:
                known.add(content)
                missing.append(tokenizers.AddedToken(token, special=True) if isinstance(token, str) else token)
        for token in missing:
            if token.content in self.named.values():
                token.special = True
        self.tokenizer.add_tokens(missing)

    @staticmethod
    def load(path, text):
        if text is None:
            raise InputError(f"{path}: no such file; a model needs it for its text")
        try:
            value = json.loads(text)
            # Offsets of whole tokens: the spaces that some tokenizers cut off belong to the token all the same.
            processor = value.get("post_processor") or {}
            cut = [one for one in [processor, *processor.get("processors", [])] if one.get("trim_offsets")]
            for one in cut:
                one["trim_offsets"] = False
            tokenizer = tokenizers.Tokenizer.from_str(json.dumps(value) if cut else text)
        except Exception as error:  # the library throws bare Exceptions
            raise InputError(f"{path}: is not a tokenizer that the tokenizers library can read: {error}")
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    def id_of(self, content):
        return None if content is None else self.tokenizer.token_to_id(content)
