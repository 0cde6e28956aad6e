"""The model's files."""

import json
import os


class InputError(Exception):
    """What the user can put right; its text is shown."""


def read_text(directory, name):
    """The file's text, or None where there is none."""
    try:
        with open(os.path.join(directory, name), encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise InputError(f"{os.path.join(directory, name)}: is not UTF-8 text")
    except OSError as error:
        raise InputError(f"{os.path.join(directory, name)}: cannot be read: {error.strerror}")
    if text.startswith("version https://git-lfs.github.com/spec/"):
        path = os.path.join(directory, name)
        raise InputError(f"{path}: is a Git LFS pointer, not the file itself: fetch that with `git lfs pull`")
    return text


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
