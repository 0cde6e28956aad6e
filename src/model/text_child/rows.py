"""A model directory: rows to tokens and targets."""

import datetime
import hashlib
import json
import os
import sys

import jinja2
import tokenizers

from .files import InputError, read_object, read_text
from .templates import Template, chat_templates, environment, normalized
from .tokens import Tokens
from .turns import SpanError, Spans, mark_targets


class Row:
    """One row on its way: its text, and what of it is a target (None: all)."""

    def __init__(self):
        self.text, self.spans, self.plain, self.error = "", None, False, ""


class Model:
    def __init__(self, directory, today, source):
        self.directory = directory
        if not os.path.isdir(directory):
            raise InputError(f"{directory}: no such directory")
        config = read_object(directory, "tokenizer_config.json")
        self.tokens = Tokens(directory, config)
        self.tokenizer = self.tokens.tokenizer
        sources = chat_templates(directory, config)
        reads_clock = any("strftime_now" in text for text, _ in sources.values())
        now = datetime.datetime.strptime(today, "%Y-%m-%d") if today else datetime.datetime.now()
        self.today = now.strftime("%Y-%m-%d") if reads_clock else ""
        environment_ = environment(now)
        self.templates = {
            name: Template(name, text, path, environment_, self.tokens.named) for name, (text, path) in sources.items()
        }
        self.eos = self.tokens.id_of(self.tokens.named.get("eos_token"))
        ends = {name: self.end_ids(name) for name in ("config.json", "generation_config.json")}
        stops = [self.eos] if self.eos is not None else []
        stops += [one for ids in ends.values() for one in ids]
        self.spans = {name: Spans(template, self.tokens, stops) for name, template in self.templates.items()}
        used = {spans.end_token for spans in self.spans.values() if spans.end_token}
        self.stops = list(dict.fromkeys(stops + [self.tokens.id_of(token) for token in sorted(used)]))
        self.warnings = self.check_ends(ends)
        if reads_clock:
            self.warnings.append(f"the chat template writes the date, {self.today}, into every row")
        versions = [sys.version.split()[0], tokenizers.__version__, jinja2.__version__]
        self.fingerprint = self.hash_sources([source, self.today, json.dumps(stops), *versions])

    def end_ids(self, name):
        config = read_object(self.directory, name)
        if "eos_token_id" not in config and isinstance(config.get("text_config"), dict):
            config = config["text_config"]
        value = config.get("eos_token_id")
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(one) is int and one >= 0 for one in ids):
            path = os.path.join(self.directory, name)
            raise InputError(f"{path}: eos_token_id: is neither a token id nor a list of them")
        return ids

    def check_ends(self, ends):
        """Whether programs that generate from these files will stop where the template ends a turn."""
        warnings = []
        name = "generation_config.json" if ends["generation_config.json"] else "config.json"
        for spans in self.spans.values():
            token = self.tokens.id_of(spans.end_token) if spans.end_token else None
            if token is not None and token not in ends[name]:
                warnings.append(
                    f"{os.path.join(self.directory, name)}: eos_token_id lacks {token} ({spans.end_token}), with which the"
                    " chat template ends a turn: programs that go by it will not stop there"
                )
            if spans.end_token == "":
                warnings.append("the chat template has no token that ends a turn: a model cannot learn from it to stop")
        return list(dict.fromkeys(warnings))

    def hash_sources(self, parts):
        result = hashlib.sha256()
        names = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"]
        for part in [*parts, *(read_text(self.directory, name) or "" for name in names)]:
            result.update(f"{len(part.encode())}:".encode() + part.encode())
        for name, template in sorted(self.templates.items()):
            result.update(json.dumps([name, template.source]).encode())
        return result.hexdigest()

    def template_for(self, tools):
        if not self.templates:
            raise InputError(
                f"{self.directory}: the model has no chat template (chat_template in tokenizer_config.json, or"
                " chat_template.jinja), so it takes text rows only"
            )
        name = "tool_use" if tools is not None and "tool_use" in self.templates else "default"
        if name not in self.templates:
            raise InputError(f'{self.directory}: of the chat templates {sorted(self.templates)} none is named "default"')
        return name

    def warn(self, text):
        if text not in self.warnings:
            self.warnings.append(text)

    def prepare(self, raw, fields, targets):
        row = Row()
        try:
            value = json.loads(raw)
        except (ValueError, RecursionError):  # what the caller's parser takes and Python's does not
            row.error = "row: has a number too long or is nested too deeply"
            return row
        tools = value.get("tools")
        if fields["prompt"] in value and fields["completion"] in value:
            messages = [
                {"role": "user", "content": value[fields["prompt"]]},
                {"role": "assistant", "content": value[fields["completion"]]},
            ]
            place = [fields["prompt"], fields["completion"]]
        elif fields["messages"] in value:
            messages = value[fields["messages"]]
            place = [f"{fields['messages']}[{i}]" for i in range(len(messages))]
        else:
            row.text, row.plain = value[fields["text"]], True
            if targets != "all_tokens":
                row.error = f"{fields['text']}: a text row has no prompt to mask"
            elif self.eos is None:
                row.error = f"{fields['text']}: a text row ends with eos_token, which tokenizer_config.json does not name"
            return row
        name = self.template_for(tools)
        template, messages = self.templates[name], normalized(messages)
        if any("tool_calls" in one for one in messages) and "tool_calls" not in template.source:
            self.warn("some rows have tool_calls, which the chat template leaves out")
        if tools and "tools" not in template.source:
            self.warn("some rows have tools, which the chat template leaves out")
        try:
            row.text = template.render(messages, tools)
        except Exception as error:
            row.error = f"{fields['messages'] if fields['messages'] in value else place[0]}: {template.reason(error)}"
            return row
        if targets != "all_tokens":
            try:
                row.spans = self.spans[name].find(messages, tools, row.text, targets == "last_assistant")
            except SpanError as error:
                row.error = f"{place[error.turn]}: {error}"
        return row

    def tokenize(self, rows, fields, targets):
        """Rows as (ids, targets, error)."""
        rows = [self.prepare(raw, fields, targets) for raw in rows]
        encodings = [None] * len(rows)
        for plain in (False, True):
            places = [i for i, row in enumerate(rows) if row.plain == plain and not row.error]
            texts = [rows[i].text for i in places]
            for i, encoding in zip(places, self.tokenizer.encode_batch(texts, add_special_tokens=plain)):
                encodings[i] = encoding
        for row, encoding in zip(rows, encodings):
            if row.error:
                yield [], b"", row.error
                continue
            ids = encoding.ids
            if row.plain and (not ids or ids[-1] != self.eos):
                ids = [*ids, self.eos]
            if row.spans is None:
                marks = bytearray(b"\1" * len(ids))
                marks[:1] = b"\0" * len(marks[:1])
            else:
                marks = mark_targets(encoding.offsets, row.spans)
            yield ids, bytes(marks), ""
