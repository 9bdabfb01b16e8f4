"""Finds the turns in a text whose chat template does not mark them."""

import itertools
import re
from typing import NamedTuple, Optional

from chat_messages import Refused

# One character for the beginning of message i's text and one for its end, from a plane for private use. Twice the first
# stands behind the name of one of its tool calls.
FIRST_MARK = 0xF0000
MARKS = re.compile("[\U000f0000-\U000ffffd]")
MOST_MESSAGES = 32000


def begin_mark(i):
    return chr(FIRST_MARK + 2 * i)


def end_mark(i):
    return chr(FIRST_MARK + 2 * i + 1)


def marked_texts(text, i):
    """The text with its marks, in the ways of which a template may bear one: it removes white space or cuts at it."""
    core = text.strip()
    at = text.index(core)
    front, back = text[:at], text[at + len(core) :]
    begin, end = begin_mark(i), end_mark(i)
    yield front + begin + core + end + back
    if back:
        yield front + begin + core + back + end if core else back + begin + end
    if front:
        yield begin + front + core + end + back
    if front and back:
        yield begin + front + core + back + end


def marked_content(message, i):
    return ({**message, "content": text} for text in marked_texts(message["content"], i))


def marked_call(message, i, at):
    calls = message["tool_calls"]
    function = calls[at].get("function", calls[at])
    named = {**function, "name": function.get("name", "") + 2 * begin_mark(i)}
    call = {**calls[at], "function": named} if "function" in calls[at] else named
    return {**message, "tool_calls": calls[:at] + [call] + calls[at + 1 :]}


def marked_first_call(message, i):
    yield marked_call(message, i, 0)


def marked_last_call(message, i):
    yield marked_call(message, i, len(message["tool_calls"]) - 1)


class Turn(NamedTuple):
    """Where the marks of a message are, as far as they are anywhere: of its text, and behind its call's name."""

    begin: Optional[int] = None
    end: Optional[int] = None
    call: Optional[int] = None

    @property
    def first(self):
        return min((place for place in self if place is not None), default=None)

    @property
    def last(self):
        return max((place for place in self if place is not None), default=None)


class Marked:
    """Text in which marks stood: without them, and where they were."""

    def __init__(self, text):
        self.places = {}
        pieces, at, removed = [], 0, 0
        last = None
        for mark in MARKS.finditer(text):
            pieces.append(text[at : mark.start()])
            at = mark.end()
            place = mark.start() - removed
            removed += 1
            name = mark.group()
            if (name, place) == last:
                self.places[name].pop()
                name *= 2
            self.places.setdefault(name, []).append(place)
            last = (name, place)
        pieces.append(text[at:])
        self.text = "".join(pieces)

    def place(self, mark, after):
        """Where the mark stands; of several places the first behind `after`, since templates repeat in later messages
        what earlier ones said, as the name of a tool before its result."""
        found = self.places.get(mark, ())
        return found[0] if len(found) == 1 else next((place for place in found if place >= after), None)

    def turns(self, messages):
        """Those of the first messages."""
        found, after = [], 0
        for i in range(messages):
            turn = Turn(*(self.place(mark, after) for mark in (begin_mark(i), end_mark(i), 2 * begin_mark(i))))
            if None not in turn[:2] and turn.end < turn.begin:  # turned round: it tells nothing
                turn = Turn()
            found.append(turn)
            after = after if turn.last is None else max(after, turn.last)
        return found


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

    The conversation is rendered a second time with marks in its messages. Marks count only if the text without them is
    the same. Templates may well change what they are given (cut thoughts out, remove white space): the marks show where
    the rest of it went. What is found depends on this conversation alone: nothing is remembered for the next one.
    """

    MOST_TRIES = 400  # of finding the marks that a template bears

    def __init__(self, renderer, chat, text):
        self.renderer, self.chat, self.text = renderer, chat, text
        self.marked_messages = chat.messages
        self.turns = [Turn()] * len(chat.messages)

    def spans(self):
        if not self.chat.trained:
            return []
        if len(self.chat.messages) > MOST_MESSAGES:
            raise Refused(f"there are {len(self.chat.messages)} messages; the limit is {MOST_MESSAGES}")
        if MARKS.search(self.text):
            raise Refused("the text has characters from plane 15 (U+F0000 and beyond), which are used to find turns")
        self.mark()
        spans = []
        for i in self.chat.trained:
            for begin, end in self.spans_of(i):
                if spans and begin < spans[-1][1]:
                    raise self.cannot_find(i)
                if begin < end:
                    spans.append((begin, end))
        return spans

    # Which marks a template bears.
    def mark(self):
        spoken, heard, empty, calling = [], [], [], []
        for i, message in enumerate(self.chat.messages):
            mine = spoken if message["role"] == "assistant" else heard
            if message.get("tool_calls"):
                mine.append((marked_last_call, i))
                calling.append(i)
            if self.has_text(i):
                mine.append((marked_content, i))
            elif self.is_empty(i) and not message.get("tool_calls"):
                empty.append((marked_content, i))
        self.tries = 0
        if not self.try_marks(spoken + heard + empty):
            for group in (spoken, heard, empty):
                self.mark_group(group)
        # A template may leave out all calls but the first, or all, and have the text beside them, which may be none.
        self.mark_group([(marked_first_call, i) for i in calling if self.turns[i].last is None])
        self.mark_group([(marked_content, i) for i in calling if self.turns[i].last is None and self.is_empty(i)])

    def mark_group(self, group):
        """The marks of a group that do not change the text, found by halving it."""
        if not group or self.try_marks(group):
            return
        if len(group) > 1:
            self.mark_group(group[: len(group) // 2])
            self.mark_group(group[len(group) // 2 :])
            return
        mark, i = group[0]
        ways = sum(1 for _ in mark(self.chat.messages[i], i))
        any(self.try_marks(group, way) for way in range(1, ways))

    def try_marks(self, group, way=0):
        self.tries += 1
        if self.tries > self.MOST_TRIES:
            return False
        messages = list(self.marked_messages)
        for mark, i in group:
            messages[i] = next(itertools.islice(mark(messages[i], i), way, None))
        marked = self.marked(messages)
        if marked is None or marked.text != self.text:
            return False
        self.marked_messages, self.turns = messages, marked.turns(len(messages))
        return True

    def marked(self, messages, add_generation_prompt=False):
        try:
            return Marked(self.renderer.render(self.chat, messages, add_generation_prompt))
        except Exception:  # the template takes offence at a mark, or at a conversation that ends so
            return None

    def has_text(self, i):
        content = self.chat.messages[i].get("content")
        return isinstance(content, str) and content.strip() != ""

    def is_empty(self, i):
        content = self.chat.messages[i].get("content")
        return isinstance(content, str) and not content.strip()

    def cannot_find(self, i):
        return Refused(
            f"message {i + 1}: its place in the rendered text cannot be told, so neither what is to be trained; surround "
            "the assistant's text with {% generation %} in the template, or train on everything (--train_on_prompt)"
        )

    def spans_of(self, i):
        turn = self.turns[i]
        last = turn.last
        if turn.call is not None and turn.begin is not None and self.limit(i, turn.call) < turn.begin:
            last = turn.call  # the template has the call's result before the text beside the call
        limit = self.limit(i, last or 0)
        if last is None and not self.chat.messages[i].get("tool_calls"):
            if self.is_left_out(i):
                return []
            last = self.end_of_silence(i, limit)
        begin = self.begin(i, turn.begin, last) if last is not None else None
        if begin is None:
            return [self.span_of_prefixes(i)]
        spans = [(begin, self.end(i, last, limit))]
        if last != turn.last and turn.last is not None:
            spans.append((turn.begin, self.end_of_text(i, turn.end, self.limit(i, turn.end))))
        return spans

    def is_left_out(self, i):
        """Whether the template makes no text of a message."""
        ends = [self.marked(self.chat.messages[:n]) for n in (i, i + 1)]
        return None not in ends and ends[0].text == ends[1].text

    def end_of_silence(self, i, limit):
        """Where the text of a message ends of which nothing is left, in a template that does other things where some is
        left. With a word more in it, what stands between that word and the next message ends the text too."""
        messages = list(self.marked_messages)
        messages[i] = {**messages[i], "content": self.chat.messages[i].get("content", "") + "." + end_mark(i)}
        spoken = self.marked(messages)
        turns = spoken.turns(len(messages)) if spoken else None
        if turns and turns[i].end is not None:
            behind = spoken.text[turns[i].end : self.first_mark(turns, i, turns[i].end, len(spoken.text))]
            if self.text.endswith(behind, 0, limit):
                return limit - len(behind)
        return self.end_of_prefix(i, limit)

    def end_of_prefix(self, i, limit):
        """The same where the conversation that ends with this message is rendered as the beginning of the text, from
        the last mark before it on."""
        j = next(self.marked_before(i), None)
        alone = self.marked(self.marked_messages[: i + 1])
        if j is None or alone is None:
            return None
        place, at = alone.turns(j + 1)[j].last, self.turns[j].last
        end = at + len(alone.text) - place if place is not None else limit + 1
        return end if end <= limit and self.text.startswith(alone.text[place:], at) else None

    @staticmethod
    def first_mark(turns, i, after, end):
        """Where the messages behind message i have their first mark."""
        firsts = (turn.first for turn in itertools.islice(turns, i + 1, None))
        return next((first for first in firsts if first is not None and first >= after), end)

    def limit(self, i, after):
        return self.first_mark(self.turns, i, after, len(self.text))

    def marked_before(self, i):
        return (j for j in range(i - 1, -1, -1) if self.turns[j].last is not None)

    # A turn begins where the prompt for it ends.
    def begin(self, i, own, last):
        if i == 0 and own is not None:
            return own
        try:
            prompt = self.renderer.render(self.chat, self.chat.messages[:i], True)
        except Exception:  # the template does not accept the beginning of the conversation alone
            return own
        if self.text.startswith(prompt):
            return len(prompt)
        for j in itertools.islice(self.marked_before(i), 2):
            before = self.turns[j].last
            tail = self.end_of_prompt(prompt, i, j) if before <= last else None
            if tail is None:
                continue
            common = common_length(self.text[before:last], tail)
            if common == last - before:  # all that is there is the prompt's
                return last
            if common < len(tail):
                # They part within the header, as where a prompt opens thoughts that this turn has none of: not within
                # a word.
                said = self.said_before(i, last) - before
                if common < said or (j < i - 1 and self.turns[i - 1].last is None):
                    continue
                common = max(said, *(self.text.rfind(end, before, before + common) + 1 - before for end in "\n >]:"))
            return before + common if common > 0 else own
        return None

    def said_before(self, i, last):
        """Where what earlier messages say ends."""
        ends = (turn.last for turn in self.turns[:i])
        return max((end for end in ends if end is not None and end <= last), default=0)

    def end_of_prompt(self, prompt, i, j):
        """What the prompt for message i has behind the mark of message j. The messages behind j are without marks: a
        template may ask how the last one ends."""
        marked = self.marked(self.marked_messages[: j + 1] + self.chat.messages[j + 1 : i], True)
        if marked is None or marked.text != prompt:
            return None
        place = marked.turns(j + 1)[j].last
        return prompt[place:] if place is not None else None

    # A turn ends behind the special token that follows its text, or what of its tool calls follows their marks.
    def end(self, i, last, limit):
        if self.chat.messages[i].get("tool_calls"):
            return self.end_of_calls(i, last, limit)
        return self.end_of_text(i, last, limit)

    def end_of_text(self, i, last, limit):
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

    def own_tail(self, i, last, limit):
        """How much of the text behind a mark is also there if the conversation ends with this message."""
        if i + 1 == len(self.chat.messages):
            return limit
        alone = self.marked(self.marked_messages[: i + 1])
        if alone is None:
            return last
        turn = alone.turns(i + 1)[i]
        at = turn.call if last == self.turns[i].call else turn.last
        if at is None:
            return last
        tail = last + common_length(self.text[last:limit], alone.text[at:])
        tokens = self.renderer.special.finditer(self.text, last, limit)
        return next((token.start() for token in tokens if token.start() < tail < token.end()), tail)  # not within one

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
            return found.end() if found else tail
        stop = self.renderer.special.match(self.text, end, limit)
        return stop.end() if stop and stop.group() in self.renderer.stop and not self.stops(end) else end

    def stops(self, end):
        return any(self.text.endswith(token, 0, end) for token in self.renderer.stop)

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
