"""Finds the turns in a text whose chat template does not mark them."""

import re

from chat_messages import Refused

# One character for the beginning of message i's text and one for its end, from a plane for private use.
FIRST_MARK = 0xF0000
MARKS = re.compile("[\U000f0000-\U000ffffd]")
MOST_MESSAGES = 32000


def begin_mark(i):
    return chr(FIRST_MARK + 2 * i)


def end_mark(i):
    return chr(FIRST_MARK + 2 * i + 1)


def marked_text(text, i):
    """White space stays outside, since templates remove it there."""
    core = text.strip()
    if not core:
        return text
    at = text.index(core)
    return text[:at] + begin_mark(i) + core + end_mark(i) + text[at + len(core) :]


def marked_message(message, i):
    content = message.get("content")
    calls = message.get("tool_calls")
    if calls:
        function = calls[-1].get("function", calls[-1])
        named = {**function, "name": function.get("name", "") + end_mark(i)}
        last = {**calls[-1], "function": named} if "function" in calls[-1] else named
        return {**message, "tool_calls": calls[:-1] + [last]}
    return {**message, "content": marked_text(content, i)} if isinstance(content, str) else message


class Marked:
    """Text in which marks stood: without them, and where they were."""

    def __init__(self, text):
        self.places = {}
        pieces, at, removed = [], 0, 0
        for mark in MARKS.finditer(text):
            pieces.append(text[at : mark.start()])
            at = mark.end()
            self.places.setdefault(mark.group(), []).append(mark.start() - removed)
            removed += 1
        pieces.append(text[at:])
        self.text = "".join(pieces)

    def place(self, mark):
        """Where the mark stands, if it does so once."""
        found = self.places.get(mark, ())
        return found[0] if len(found) == 1 else None


def common_length(a, b):
    """The number of characters with which both begin."""
    shorter = min(len(a), len(b))
    if a[:shorter] == b[:shorter]:
        return shorter
    low, high = 0, shorter
    while low < high:
        middle = (low + high + 1) // 2
        if a[:middle] == b[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class TurnFinder:
    """Finds the turns in a text whose template does not mark them.

    The conversation is rendered a second time with marks in its messages. The marks count only if the text without them
    is the same. Templates may well change what they are given (cut thoughts out, remove white space): the marks show
    where the rest of it went.
    """

    def __init__(self, renderer, chat, text):
        self.renderer, self.chat, self.text = renderer, chat, text
        self.marked, self.marked_messages = None, None

    def spans(self):
        if not self.chat.trained:
            return []
        if len(self.chat.messages) > MOST_MESSAGES:
            raise Refused(f"there are {len(self.chat.messages)} messages; the limit is {MOST_MESSAGES}")
        if MARKS.search(self.text):
            raise Refused("the text has characters from plane 15 (U+F0000 and beyond), which are used to find turns")
        self.mark(lambda message: True) or self.mark(lambda message: message["role"] == "assistant")
        spans = []
        for i in self.chat.trained:
            begin, end = self.span(i)
            if spans and begin < spans[-1][1]:
                raise self.cannot_find(i)
            if begin < end:
                spans.append((begin, end))
        return spans

    def mark(self, wanted):
        messages = [marked_message(m, i) if wanted(m) else m for i, m in enumerate(self.chat.messages)]
        try:
            marked = Marked(self.renderer.render(self.chat, messages))
        except Exception:  # the template takes offence at a mark
            return False
        if marked.text != self.text:
            return False
        self.marked, self.marked_messages = marked, messages
        return True

    def cannot_find(self, i):
        return Refused(
            f"message {i + 1}: its place in the rendered text cannot be told, so neither what is to be trained; surround "
            "the assistant's text with {% generation %} in the template, or train on everything (--train_on_prompt)"
        )

    def span(self, i):
        last = self.marked.place(end_mark(i)) if self.marked else None
        if last is None:
            return self.span_of_prefixes(i)
        begin = self.begin(i, last)
        return (begin, self.end(i, last)) if begin is not None else self.span_of_prefixes(i)

    # A turn begins where the prompt for it ends.
    def begin(self, i, last):
        own = self.marked.place(begin_mark(i))
        if i == 0:
            return own
        before = self.marked.place(end_mark(i - 1))
        if before is None or before > last:
            return None
        prompt = self.end_of_prompt(i, self.text[before:own] if own is not None else None)
        if prompt is None:
            return own
        common = common_length(self.text[before:last], prompt)
        if common < len(prompt):
            # They part within the header, as where a prompt opens thoughts that this turn has none of: not within a word.
            common = max(self.text.rfind(end, before, before + common) + 1 for end in "\n >]:") - before
        return before + common if common > 0 else own

    def end_of_prompt(self, i, header):
        """The prompt's text behind message i - 1. Remembered by what decides about it: the text that it is the beginning
        of, the message's role, and how the conversation begins (system messages switch thoughts on and off)."""
        if header is None:
            return self.rendered_end_of_prompt(i)
        first = self.chat.messages[0]
        system = first.get("content") if first["role"] == "system" else None
        key = (header, self.chat.messages[i - 1]["role"], str(system), str(self.chat.variables))
        prompts = self.renderer.prompts
        if key not in prompts:
            if len(prompts) >= 1000:
                prompts.clear()
            prompts[key] = self.rendered_end_of_prompt(i)
        return prompts[key]

    def rendered_end_of_prompt(self, i):
        try:
            prompt = Marked(self.renderer.render(self.chat, self.marked_messages[:i], True))
        except Exception:  # the template does not accept the beginning of the conversation alone
            return None
        before = prompt.place(end_mark(i - 1))
        return prompt.text[before:] if before is not None else None

    # A turn ends behind the special token that follows its text, or what of its tool calls follows their marks.
    def end(self, i, last):
        following = [self.marked.place(begin_mark(j)) or self.marked.place(end_mark(j)) for j in self.next_marks(i)]
        limit = following[0] if following else len(self.text)
        if self.chat.messages[i].get("tool_calls"):
            return self.end_of_calls(i, last, limit)
        found = self.renderer.special.search(self.text, last, limit)
        if found is None or self.text[last : found.start()].strip():
            return self.end_of_other(i, last, limit)
        # Where several tokens stand side by side (<|END_RESPONSE|><|END_OF_TURN_TOKEN|>), the one that stops generation.
        at = found
        while at and at.start() < limit:
            if at.group() in self.renderer.stop:
                return at.end()
            at = self.renderer.special.match(self.text, at.end(), limit)
        return last if found.group() in self.renderer.header_tokens() else found.end()

    def next_marks(self, i):
        for j in range(i + 1, len(self.chat.messages)):
            if self.marked.place(begin_mark(j)) is not None or self.marked.place(end_mark(j)) is not None:
                yield j
                return

    def own_tail(self, i, last, limit):
        """How much of the text behind a mark is also there if the conversation ends with this message."""
        if i + 1 == len(self.chat.messages):
            return limit
        try:
            alone = Marked(self.renderer.render(self.chat, self.marked_messages[: i + 1]))
        except Exception:
            return last
        at = alone.place(end_mark(i))
        return last if at is None else last + common_length(self.text[last:limit], alone.text[at:])

    def through_last_special(self, begin, end):
        found = None
        for found in self.renderer.special.finditer(self.text, begin, end):
            pass
        return found.end() if found else None

    def end_of_calls(self, i, last, limit):
        tail = self.own_tail(i, last, limit)
        end = self.through_last_special(last, tail)
        if end is None:
            found = self.renderer.special.search(self.text, tail, limit)
            end = found.end() if found else tail
        return end

    def end_of_other(self, i, last, limit):
        tail = self.own_tail(i, last, limit)
        return self.through_last_special(last, tail) or tail

    # Without marks: where each beginning of the conversation is rendered as the beginning of the text.
    def span_of_prefixes(self, i):
        chat, renderer = self.chat, self.renderer
        try:
            prompt = renderer.render(chat, chat.messages[:i], True)
            through = renderer.render(chat, chat.messages[: i + 1])
        except Exception:
            raise self.cannot_find(i) from None
        if not self.text.startswith(through) or not through.startswith(prompt):
            raise self.cannot_find(i)
        return len(prompt), self.through_last_special(len(prompt), len(through)) or len(through)
