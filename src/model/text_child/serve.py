"""The child process behind model/text.h: chat templates by jinja2, tokens by tokenizers, as transformers applies them.

It serves one model directory. A request and its reply are each a frame: two little-endian 64-bit sizes, that many bytes
of JSON, that many bytes of payload. An "error" in a reply is meant for the user, so it never quotes a row.
"""

import array
import json
import os
import struct
import sys

from .files import InputError

try:
    from .rows import Model
    from .templates import normalized
except ImportError as error:
    MISSING = str(error)
else:
    MISSING = None


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
        try:
            replies.write(struct.pack("<QQ", len(text), len(payload)) + text + payload)
            replies.flush()
        except BrokenPipeError:
            os._exit(0)  # the parent is gone: the rest of the reply, which a plain exit would try to write, is for nobody
