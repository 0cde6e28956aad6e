"""The child process behind model/text.h: chat templates by jinja2, tokens by tokenizers, as transformers applies them.

It serves one model directory. A request and its reply are each a frame: two little-endian 64-bit sizes, that many bytes
of JSON, that many bytes of payload. An "error" in a reply is meant for the user, so it never quotes a row.
"""

import array
import datetime
import hashlib
import json
import os
import re
import struct
import sys


class InputError(Exception):
    """What the user can put right; its text is shown."""


try:
    import jinja2
    import jinja2.ext
    import jinja2.sandbox
    import tokenizers
except ImportError as error:
    MISSING = str(error)
else:
    MISSING = None
    if tuple(int(part) for part in re.findall(r"\d+", jinja2.__version__)[:3]) < (3, 1, 6):
        MISSING = f"jinja2 {jinja2.__version__} is too old, 3.1.6 or later is needed"


# The model's files


def read_text(directory, name):
    """The file's text, or None where there is none."""
    try:
        with open(os.path.join(directory, name), encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise InputError(f"{os.path.join(directory, name)}: is not UTF-8 text")
    except OSError as error:
        raise InputError(f"{os.path.join(directory, name)}: cannot be read: {error.strerror}")


def read_object(directory, name):
    text = read_text(directory, name)
    if text is None:
        return {}
    path = os.path.join(directory, name)
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InputError(f"{path}: is not valid JSON: {error}")
    if not isinstance(value, dict):
        raise InputError(f"{path}: is not a JSON object")
    return value


def chat_templates(directory, config):
    """Template sources by name. Files go before tokenizer_config.json; a processor's chat_template.json comes last."""
    files = {}
    if (text := read_text(directory, "chat_template.jinja")) is not None:
        files["default"] = text
    folder = os.path.join(directory, "additional_chat_templates")
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        if name.endswith(".jinja"):
            files[name.removesuffix(".jinja")] = read_text(folder, name)
    for path, value in (
        ("", files or None),
        ("tokenizer_config.json", config.get("chat_template")),
        ("chat_template.json", read_object(directory, "chat_template.json").get("chat_template")),
    ):
        if value is None:
            continue
        if isinstance(value, str):
            return {"default": value}
        if isinstance(value, list) and all(isinstance(one, dict) and {"name", "template"} <= one.keys() for one in value):
            value = {one["name"]: one["template"] for one in value}
        if isinstance(value, dict) and all(isinstance(text, str) for text in value.values()):
            return value
        raise InputError(f"{os.path.join(directory, path)}: chat_template: is neither a text nor a list of named texts")
    return {}


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


# Chat templates


class Generation(jinja2.ext.Extension if MISSING is None else object):
    """{% generation %}: while `marks` is set, its two characters are put around what stands within."""

    tags = {"generation"}
    marks = None

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_generation"), [], [], body).set_lineno(line)

    def _generation(self, caller):
        text = caller()
        return f"{self.marks[0]}{text}{self.marks[1]}" if self.marks else text


def environment(now):
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    class Namespace(jinja2.utils.Namespace):
        """Without names that reach into Python."""

        def __init__(*args, **kwargs):
            self, *rest = args
            values = dict(*rest, **kwargs)
            for name in values:
                Namespace.check(name)
            jinja2.utils.Namespace.__init__(self, values)

        def __setitem__(self, name, value):
            Namespace.check(name)
            jinja2.utils.Namespace.__setitem__(self, name, value)

        @staticmethod
        def check(name):
            if isinstance(name, str) and name.startswith("_"):
                raise jinja2.exceptions.SecurityError(f"a namespace cannot have an attribute {name!r}")

    class Dict:
        def __call__(self, *args, **kwargs):
            return dict(*args, **kwargs)

        def fromkeys(self, *args, **kwargs):
            return dict.fromkeys(*args, **kwargs)

    result = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    result.filters["tojson"] = to_json
    result.globals.update(
        raise_exception=raise_exception, strftime_now=lambda form: now.strftime(form), namespace=Namespace, dict=Dict()
    )
    return result


REASONING = ("reasoning_content", "thinking", "reasoning")


def normalized(messages):
    """Messages as templates get them: without empty fields, reasoning under the name that templates read."""
    result = []
    for message in messages:
        message = {key: value for key, value in message.items() if value is not None}
        reasoning = next((message[key] for key in REASONING if key in message), None)
        if reasoning is not None:
            message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
        result.append(message)
    return result


class Template:
    """One chat template with the model's special tokens as variables."""

    def __init__(self, name, source, environment_, variables):
        self.source = source
        self.variables = variables
        try:
            self.compiled = environment_.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise InputError(f'chat template "{name}": line {error.lineno}: {error.message}')
        self.generation = environment_.extensions[Generation.identifier]
        self.marks_turns = re.search(r"\{%-?\s*generation\s*-?%\}", source) is not None

    def render(self, messages, tools, add_generation_prompt=False, marks=None):
        """`messages` are normalized. Any exception may come out."""
        self.generation.marks = marks
        return self.compiled.render(
            messages=messages,
            tools=tools,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **self.variables,
        )

    def try_render(self, *args, **kwargs):
        try:
            return self.render(*args, **kwargs)
        except Exception:
            return None

    def reason(self, error):
        """Why it cannot render a conversation, as far as that can be told without quoting the conversation."""
        text = str(error)
        known = ("dict object", "list object", "str object", "None", "str", "int", "dict", "list", "NoneType")
        quoted = re.findall(r"'([^']*)'|\"([^\"]*)\"", text)
        if isinstance(error, jinja2.TemplateError):
            if text and text in self.source.replace("\\'", "'").replace('\\"', '"'):
                return f"the chat template refuses it: {text}"
            if isinstance(error, jinja2.UndefinedError):
                if all((a or b) in known or (a or b) in self.source for a, b in quoted):
                    return f"the chat template needs something that is missing: {text}"
                return "the chat template needs something that is missing"
            return "the chat template refuses it"
        if isinstance(error, TypeError) and quoted and all((a or b) in known for a, b in quoted):
            return f"the chat template fails: {text}"
        return f"the chat template fails with {type(error).__name__}"


# Where assistant turns lie in a rendering


class SpanError(Exception):
    """`turn`: the message whose span cannot be told; None for all of them."""

    def __init__(self, turn, text):
        super().__init__(text)
        self.turn = turn


def common(a, b):
    """Length of the common prefix."""
    if b.startswith(a):
        return len(a)
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[:middle] == b[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def unused(*texts):
    """Private-use characters that no text has."""
    return (chr(code) for code in range(0xF000, 0xF8FF) if not any(chr(code) in text for text in texts))


class Spans:
    """Finds the character spans of assistant turns: each from just after its header, which is what the template emits as
    generation prompt, through the token that ends it. Nothing is guessed: each bound is found by comparing renderings of
    this conversation in which one thing differs, and what does not fit is an error."""

    def __init__(self, template, tokens, stops):
        self.template = template
        self.tokenizer = tokens.tokenizer
        self.stops = {token for token in map(self.tokenizer.id_to_token, stops) if token}
        special = {t.content for t in self.tokenizer.get_added_tokens_decoder().values() if t.special} | self.stops
        self.special = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))) or "(?!)")
        self.usable_cuts = {}
        self.other_header = ""
        self.header, self.end_token = self.probe()

    def probe(self):
        """What the template emits as generation prompt after a user's message, and the token that ends an answer."""
        user, mark = {"role": "user", "content": "x"}, next(unused(self.template.source))
        header, end = None, None
        before, prompt = (self.template.try_render([user], None, add) for add in (False, True))
        if before is not None and prompt is not None:
            self.other_header = before
            header = prompt[common(before, prompt) :]
        answered = self.template.try_render([user, {"role": "assistant", "content": mark}], None)
        if answered is not None and answered.count(mark) == 1:
            match = self.special.search(answered.split(mark)[1])
            end = match[0] if match else ""
        return header, end

    def find(self, messages, tools, text, last_only):
        turns = [i for i, message in enumerate(messages) if message.get("role") == "assistant"]
        if self.template.marks_turns:
            return self.marked(messages, tools, text, turns, last_only)
        spans, unended = [], None
        for turn in turns[-1:] if last_only else turns:
            span = self.turn(messages, tools, text, turn, spans[-1] if spans else (0, 0))
            if span is None:
                continue
            start, end = span
            if spans and start < spans[-1][1]:
                spans.pop()  # the template joins neighbouring turns
            elif unended is not None:
                break
            unended = turn if end is None else None
            spans.append((start, len(text) if end is None else end))
        if unended is not None:
            raise SpanError(unended, "cannot tell where the chat template ends this turn")
        return spans

    def marked(self, messages, tools, text, turns, last_only):
        """The spans that {% generation %} marks, each with the token that ends the turn if that follows."""
        if not turns:
            return []
        spans = self.generation_spans(messages, tools, text)
        if last_only and len(turns) > 1:
            before = self.generation_spans(messages[: turns[-1]], tools)
            spans = None if spans is None or before is None else spans[len(before) :]
        if not spans:
            raise SpanError(turns[-1], "the chat template's {% generation %} does not tell where this turn lies")
        ends = self.stops | ({self.end_token} if self.end_token else set())
        return [(start, end + max((len(one) for one in ends if text.startswith(one, end)), default=0)) for start, end in spans]

    def generation_spans(self, messages, tools, text=None):
        text = self.template.try_render(messages, tools) if text is None else text
        if text is None:
            return None
        marks = [mark for mark, _ in zip(unused(text, self.template.source), range(2))]
        marked = self.template.try_render(messages, tools, marks=marks)
        if marked is None or marked.replace(marks[0], "").replace(marks[1], "") != text:
            return None
        spans, position = [], 0
        for piece in re.split(f"([{marks[0]}{marks[1]}])", marked):
            if piece == marks[0]:
                spans.append((position, position))
            elif piece == marks[1]:
                spans[-1] = (spans[-1][0], position)
            else:
                position += len(piece)
        return spans

    def turn(self, messages, tools, text, turn, previous):
        """The span of one turn; None if the template leaves it out. An end of None: the next turn goes on with it."""
        render = self.template.try_render
        before, after = messages[:turn], messages[turn + 1 :]
        mark = next(unused(text, self.template.source))
        content = messages[turn].get("content")
        plain = {"role": "assistant", "content": [{"type": "text", "text": mark}] if isinstance(content, list) else mark}
        alone = render(before + [plain], tools)
        instead = render(before + [plain] + after, tools) if after else alone
        if instead == text:
            return None

        # Where what the turn says begins (or later) and ends: `instead` differs from `text` in just that.
        tail = alone.split(mark)[1] if alone is not None and alone.count(mark) == 1 else None
        low = high = None
        if instead is not None and instead.count(mark) == 1:
            left, right = instead.split(mark)
            if text.endswith(right) and len(right) <= len(text):
                low, high = common(left, text), len(text) - len(right)
        if high is None and tail is not None:
            whole = render(messages[: turn + 1], tools)
            if whole is not None and whole.endswith(tail) and text.startswith(whole[: len(whole) - len(tail)]):
                low = high = len(whole) - len(tail)
        if high is None:
            raise SpanError(turn, "cannot tell where the chat template puts this turn")

        start = self.start(before, tools, text, min(low, high), turn, messages, previous)
        end = self.end(text, high, tail, turn, bool(after) and after[0].get("role") == "assistant")
        if not (previous[1] <= start or start == previous[0]) or not start <= high <= (end or high):
            raise SpanError(turn, "the chat template puts this turn where it overlaps others")
        return start, end

    def start(self, before, tools, text, low, turn, messages, previous):
        """Just after the turn's header."""
        without = self.template.try_render(before, tools)
        prompt = self.template.try_render(before, tools, True)
        header = self.header
        if without is not None and prompt is not None:
            header = prompt[common(without, prompt) :]
            if prompt.startswith(without) and text.startswith(without):
                shared = common(header, text[len(without) : len(without) + len(header)])
                cut = next((cut for cut in self.cuts(header) if cut <= shared), None)
                if cut is None:
                    raise SpanError(turn, "the chat template begins this turn otherwise than its generation prompt")
                return len(without) + cut
        # The renderings of shorter conversations do not begin this one: look for the header itself.
        joined = turn > 0 and messages[turn - 1].get("role") == "assistant"
        for cut in self.cuts(header) if header else []:
            position = text.rfind(header[:cut], 0 if joined else previous[1], low)
            if position >= 0:
                return position + cut
        raise SpanError(turn, "cannot tell where the chat template begins this turn")

    def cuts(self, header):
        """Where the header may end, longest first. A generation prompt may say more than the turn begins with (one that
        opens a think block, say); what they share then ends with a token and is not what a user's turn begins with."""
        if header not in self.usable_cuts:
            ends = {end for _, end in self.tokenizer.encode(header, add_special_tokens=False).offsets}
            partly = [cut for cut in ends if 0 < cut < len(header) and header[:cut] not in self.other_header]
            self.usable_cuts[header] = [len(header), *sorted(partly, reverse=True)]
        return self.usable_cuts[header]

    def end(self, text, high, tail, turn, may_go_on):
        """Just after the token that ends the turn."""
        if tail is not None:
            match = self.special.search(tail)
            marker = tail[: match.end()] if match else tail.rstrip()
            if marker and text.startswith(marker, high):
                return high + len(marker)
        match = self.special.match(text, high)
        if match and match[0] in self.stops:
            return match.end()
        if may_go_on:
            return None
        if tail is None or marker:
            raise SpanError(turn, "cannot tell where the chat template ends this turn")
        return high  # the template has nothing that ends a turn; warnings() says so


# Rows


def mark_targets(offsets, spans):
    """A token is a target if it shares a character with a span. The first token never is: nothing predicts it."""
    targets = bytearray(len(offsets))
    index = 0
    for token, (start, end) in enumerate(offsets):
        while index < len(spans) and start >= spans[index][1]:
            index += 1
        if index == len(spans):
            break
        if end > spans[index][0]:
            targets[token] = 1
    if targets:
        targets[0] = 0
    return targets


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
        reads_clock = any("strftime_now" in text for text in sources.values())
        now = datetime.datetime.strptime(today, "%Y-%m-%d") if today else datetime.datetime.now()
        self.today = now.strftime("%Y-%m-%d") if reads_clock else ""
        environment_ = environment(now)
        self.templates = {
            name: Template(name, text, environment_, self.tokens.named) for name, text in sources.items()
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


# Requests


def split(payload, sizes):
    position = 0
    for size in sizes:
        yield payload[position : position + size]
        position += size


def serve(model, request, payload):
    """A reply and its payload."""
    operation = request["op"]
    if operation == "about":
        about = {
            "fingerprint": model.fingerprint,
            "stop_ids": model.stops,
            "today": model.today,
            "vocabulary": model.tokenizer.get_vocab_size(with_added_tokens=True),
            "warnings": model.warnings,
        }
        return about, b""
    if operation == "render":
        tools = request["tools"]
        template = model.templates[model.template_for(tools)]
        try:
            text = template.render(normalized(request["messages"]), tools, request["add_generation_prompt"])
        except Exception as error:
            raise InputError(template.reason(error))
        return {}, text.encode()
    if operation == "encode":
        try:
            text = payload.decode()
        except UnicodeDecodeError:
            raise InputError("the text is not valid UTF-8")
        ids = model.tokenizer.encode(text, add_special_tokens=request["special"]).ids
        return {}, array.array("i", ids).tobytes()
    if operation == "decode":
        ids = array.array("i", payload).tolist()
        if any(one < 0 for one in ids):
            raise InputError(f"{min(ids)} is no token id")
        return {}, model.tokenizer.decode(ids, skip_special_tokens=request["skip_special"]).encode()
    if operation == "tokenize":
        sizes, errors, ids, targets = [], {}, array.array("i"), bytearray()
        rows = split(payload, request["sizes"])
        for number, (row, marks, error) in enumerate(model.tokenize(rows, request["fields"], request["targets"])):
            sizes.append(len(row))
            ids.extend(row)
            targets += marks
            if error:
                errors[number] = error
        return {"sizes": sizes, "errors": errors, "warnings": model.warnings}, ids.tobytes() + bytes(targets)
    raise InputError(f"unknown request {operation}")


def read_exactly(stream, size):
    data = stream.read(size)
    if len(data) < size:
        sys.exit(0)  # the parent is gone, or has no more to ask
    return data


def main(source):
    requests = sys.stdin.buffer
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not get among the replies
    model = None
    while True:
        header, body = struct.unpack("<QQ", read_exactly(requests, 16))
        request, payload = json.loads(read_exactly(requests, header)), read_exactly(requests, body)
        try:
            if MISSING is not None:
                raise InputError(f"{sys.executable}: {MISSING}; install the Python packages tokenizers and jinja2 for it")
            if model is None:
                model = Model(request["directory"], request["today"], source)
            reply, payload = serve(model, request, payload)
        except InputError as error:
            reply, payload = {"error": str(error)}, b""
        text = json.dumps(reply).encode()
        replies.write(struct.pack("<QQ", len(text), len(payload)) + text + payload)
        replies.flush()
