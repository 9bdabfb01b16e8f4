"""Renders chat templates with Jinja2 for the program, of which this text is a part; it is not meant to be run by hand.

The environment is the one in which transformers (5.23) renders them, so that the text is the same. Requests come on
standard input and answers go to standard output, each a line with a number of bytes and then so many bytes of JSON.

The first request sets the template up:
  {"template": TEXT, "tool_template": TEXT, "variables": {"bos_token": ...}, "special": [TOKEN...], "stop": [TOKEN...],
   "now": ISO TIME or null}
  answered by {} or {"error": TEXT}. "tool_template" is for records with tools, and may be null. "special" are the
  tokens that may end a turn, "stop" those that end generation. "now" stands for the time, in tests.
Each of the others has records as data files have them (records.h):
  {"records": [...], "train": "assistant" | "last" | "all" | "nothing", "add_generation_prompt": BOOL}
  answered by {"records": [["text", "trained text", "text", ...] or {"error": TEXT}, ...]}: the rendered text in pieces,
  of which every second is trained.
"""

import json
import os
import re
import signal
import sys
from datetime import datetime

NO_JINJA = 3  # the exit code that the program knows

try:
    import jinja2
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment
except ImportError:
    sys.exit(NO_JINJA)


class Refused(Exception):
    """A record, or a template, that cannot be used; the text says why."""


# ---- The environment ----


class GenerationTag(jinja2.ext.Extension):
    """{% generation %} ... {% endgeneration %} surrounds what the model says."""

    tags = {"generation"}

    def __init__(self, environment):
        super().__init__(environment)
        environment.extend(pieces=None, generated=None)

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_note"), [], [], body).set_lineno(line)

    def _note(self, caller):
        text = caller()
        if self.environment.pieces is not None:
            begin = sum(map(len, self.environment.pieces))
            self.environment.generated.append((begin, begin + len(text)))
        return text


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


class PlainDict:
    """`dict` for templates, without the attributes of the class."""

    def __call__(self, *args, **kwargs):
        return dict(*args, **kwargs)

    def fromkeys(self, *args, **kwargs):
        return dict.fromkeys(*args, **kwargs)


class PlainNamespace(jinja2.utils.Namespace):
    """A namespace that keeps no name that begins with an underscore: the sandbox forbids to read them."""

    def __init__(*args, **kwargs):
        self, args = args[0], args[1:]
        attributes = dict(*args, **kwargs)
        for name in attributes:
            PlainNamespace.check(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name, value):
        PlainNamespace.check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def check(name):
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace may not have the attribute {name!r}")


DICT_ATTRIBUTES = frozenset(dir(dict))


class Environment(ImmutableSandboxedEnvironment):
    """The sandbox with a shorter way to what templates do most, `message.content`; the result is the same."""

    def getattr(self, obj, attribute):
        if type(obj) is dict and attribute not in DICT_ATTRIBUTES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)


def make_environment(now):
    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: (now or datetime.now()).strftime(form)
    environment.globals["dict"] = PlainDict()
    environment.globals["namespace"] = PlainNamespace
    return environment


# ---- Records ----

SHAREGPT_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
}
REASONING = ("reasoning_content", "thinking", "reasoning")


def joined_text(content):
    """A list of text parts as one string; whatever else it is stays."""
    if not isinstance(content, list):
        return content
    return "".join(part if isinstance(part, str) else part["text"] for part in content)


def with_parsed_arguments(call):
    """OpenAI writes a call's arguments as a string of JSON, templates expect an object."""
    function = call.get("function", call)
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return call
    try:
        parsed = json.loads(arguments)
    except ValueError:
        return call
    if not isinstance(parsed, dict):
        return call
    function = {**function, "arguments": parsed}
    return {**call, "function": function} if "function" in call else function


def plain_message(message):
    """A message as templates see it: keys that are null are left out, as transformers does."""
    if "role" not in message:  # ShareGPT
        message = {"role": SHAREGPT_ROLES[message["from"]], "content": message["value"]}
    message = {key: value for key, value in message.items() if value is not None and key != "weight"}
    if "content" in message:
        message["content"] = joined_text(message["content"])
    if "tool_calls" in message:
        message["tool_calls"] = [with_parsed_arguments(call) for call in message["tool_calls"]]
    reasoning = next((message[key] for key in REASONING if key in message), None)
    if reasoning is not None:
        message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    return message


class Chat:
    """A record's messages, which of them are trained, and what else the template sees."""

    def __init__(self, record, train):
        if record.get("messages") is not None:
            raw, first = record["messages"], 0
        elif record.get("conversations") is not None:
            raw, first = record["conversations"], 0
        else:
            raw, first = record["prompt"] + record["completion"], len(record["prompt"])
        self.messages = [plain_message(message) for message in raw]
        if isinstance(record.get("system"), str) and record["system"]:
            self.messages.insert(0, {"role": "system", "content": record["system"]})
            raw, first = [{}] + raw, first + 1
        self.turns = [i for i, message in enumerate(self.messages) if message["role"] == "assistant"]
        chosen = self.turns[-1:] if train == "last" else self.turns
        self.trained = [i for i in chosen if i >= first and raw[i].get("weight") != 0]
        tools = record.get("tools")
        self.variables = {
            "tools": (json.loads(tools) if tools else None) if isinstance(tools, str) else tools,
            "documents": record.get("documents"),
            **(record.get("chat_template_kwargs") or {}),
        }


# ---- Where turns begin and end ----

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


class Renderer:
    def __init__(self, setup, text):
        now = datetime.fromisoformat(setup["now"]) if setup.get("now") else None
        self.environment = make_environment(now)
        self.template = self.environment.from_string(text)
        self.has_generation = re.search(r"\{\%-?\s*generation\s*-?\%\}", text) is not None
        self.variables = setup["variables"]
        self.stop = set(setup["stop"])
        tokens = sorted(set(setup["special"]) | self.stop, key=len, reverse=True)
        self.special = re.compile("|".join(map(re.escape, tokens)) if tokens else r"(?!)")
        self.headers = None
        self.prompts = {}  # the ends of prompts (TurnFinder.begin)

    def header_tokens(self):
        """The special tokens that begin a turn, so that they do not end the one before."""
        if self.headers is None:
            try:
                chat = Chat({"messages": [{"role": "user", "content": "a"}]}, "all")
                prompt = self.render(chat, chat.messages, True)
                self.headers = set(self.special.findall(prompt, common_length(prompt, self.render(chat, chat.messages))))
            except Exception:  # a template that wants more than one message
                self.headers = set()
        return self.headers

    def render(self, chat, messages, add_generation_prompt=False):
        values = {**self.variables, **chat.variables}
        return self.template.render(messages=messages, add_generation_prompt=add_generation_prompt, **values)

    def render_generated(self, chat):
        """The text, and what {% generation %} surrounds."""
        environment = self.environment
        environment.pieces, environment.generated = [], []
        try:
            values = {**self.variables, **chat.variables}
            for piece in self.template.generate(messages=chat.messages, add_generation_prompt=False, **values):
                environment.pieces.append(piece)
            return "".join(environment.pieces), environment.generated
        finally:
            environment.pieces = environment.generated = None

    def pieces_of(self, chat, train, add_generation_prompt):
        if train == "nothing":
            return [self.render(chat, chat.messages, add_generation_prompt)]
        if train == "all":
            return ["", self.render(chat, chat.messages)]
        if self.has_generation:
            text, spans = self.render_generated(chat)
            spans = self.chosen_spans(chat, spans)
        else:
            text = self.render(chat, chat.messages)
            spans = TurnFinder(self, chat, text).spans()
        pieces, at = [], 0
        for begin, end in spans:
            pieces += [text[at:begin], text[begin:end]]
            at = end
        return pieces + [text[at:]]

    def chosen_spans(self, chat, spans):
        if chat.trained == chat.turns:
            return spans
        if len(spans) != len(chat.turns):
            raise Refused(
                f"the template marks {len(spans)} parts with {{% generation %}} and there are {len(chat.turns)} "
                "assistant turns, so that single turns cannot be told apart; train on all of them"
            )
        trained = set(chat.trained)
        return [span for span, turn in zip(spans, chat.turns) if turn in trained]


class Renderers:
    """The model's template, and the one for records with tools."""

    def __init__(self, setup):
        self.plain = Renderer(setup, setup["template"])
        self.tools = Renderer(setup, setup["tool_template"]) if setup.get("tool_template") else self.plain

    def pieces_of(self, record, train, add_generation_prompt):
        chat = Chat(record, train)
        if not chat.messages:
            raise Refused("there are no messages")
        renderer = self.plain if chat.variables["tools"] is None else self.tools
        return renderer.pieces_of(chat, train, add_generation_prompt)


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


# ---- Requests ----


def told(error):
    """A template's exception in one line."""
    if isinstance(error, Refused):
        return str(error)
    name = type(error).__name__
    text = " ".join(str(error).split())
    line = getattr(error, "lineno", None)
    where = f", line {line}" if isinstance(line, int) else ""
    if isinstance(error, jinja2.exceptions.TemplateError) and type(error) is jinja2.exceptions.TemplateError:
        return f"the chat template refuses the messages: {text}"
    return f"the chat template fails{where}: {name}: {text}"


def answer(renderers, request):
    answers = []
    for record in request["records"]:
        try:
            answers.append(renderers.pieces_of(record, request["train"], request["add_generation_prompt"]))
        except Exception as error:  # a template may raise anything
            answers.append({"error": told(error)})
    return {"records": answers}


def read_message(stream):
    line = stream.readline()
    if not line:
        sys.exit(0)
    return json.loads(stream.read(int(line)))


def write_message(stream, value):
    data = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    stream.write(b"%d\n" % len(data))
    stream.write(data)
    stream.flush()


def serve():
    # The program ends us by closing the pipe. If it is killed while a template runs, nobody does.
    parent = os.getppid()
    sys.setrecursionlimit(3000)  # JSON may be nested 1,024 deep
    if hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(0)
    signal.signal(signal.SIGALRM, lambda *_: os.getppid() == parent or os._exit(0))
    signal.setitimer(signal.ITIMER_REAL, 1, 1)
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    setup = read_message(requests)
    try:
        renderers = Renderers(setup)
    except Exception as error:
        write_message(answers, {"error": told(error)})
        return
    write_message(answers, {})
    while True:
        write_message(answers, answer(renderers, read_message(requests)))


if __name__ == "__main__":
    try:
        serve()
    except BrokenPipeError:
        os._exit(0)
