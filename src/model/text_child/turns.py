"""Where assistant turns lie in a rendering, and which tokens are targets therefore."""

import re


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
