"""Chat templates by jinja2, in the environment that transformers sets up."""

import json
import os
import re

import jinja2
import jinja2.ext
import jinja2.sandbox

from .files import InputError, read_object, read_text

if tuple(int(part) for part in re.findall(r"\d+", jinja2.__version__)[:3]) < (3, 1, 6):
    raise ImportError(f"jinja2 {jinja2.__version__} is too old, 3.1.6 or later is needed")


def chat_templates(directory, config):
    """Templates by name, each its source and the file it is from. Files go before tokenizer_config.json; a processor's chat_template.json comes last."""
    files = {}
    if (text := read_text(directory, "chat_template.jinja")) is not None:
        files["default"] = text, os.path.join(directory, "chat_template.jinja")
    folder = os.path.join(directory, "additional_chat_templates")
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        if name.endswith(".jinja"):
            files[name.removesuffix(".jinja")] = read_text(folder, name), os.path.join(folder, name)
    if files:
        return files
    for name, value in (
        ("tokenizer_config.json", config.get("chat_template")),
        ("chat_template.json", read_object(directory, "chat_template.json").get("chat_template")),
    ):
        if value is None:
            continue
        path = os.path.join(directory, name)
        if isinstance(value, str):
            value = {"default": value}
        if isinstance(value, list) and all(isinstance(one, dict) and {"name", "template"} <= one.keys() for one in value):
            value = {one["name"]: one["template"] for one in value}
        if isinstance(value, dict) and all(isinstance(text, str) for text in value.values()):
            return {key: (text, path) for key, text in value.items()}
        raise InputError(f"{path}: chat_template: is neither a text nor a list of named texts")
    return {}


class Generation(jinja2.ext.Extension):
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

    def __init__(self, name, source, path, environment_, variables):
        self.source = source
        self.variables = variables
        try:
            self.compiled = environment_.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise InputError(f'{path}: chat template "{name}": line {error.lineno}: {error.message}')
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
