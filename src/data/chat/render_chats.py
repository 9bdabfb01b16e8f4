"""Renders chat templates with Jinja2 for the program, of which this text is a part; it is not meant to be run by hand.

Requests come on standard input and answers go to standard output, each a line with a number of bytes and then those
bytes of JSON.

The first request sets the template up:
  {"template": TEXT, "tool_template": TEXT, "variables": {"bos_token": ...}, "special": [TOKEN...], "stop": [TOKEN...],
   "now": ISO TIME or null}
  answered by {} or {"error": TEXT}. "tool_template" is for records with tools, and may be null. "special" are the
  tokens that may end a turn, "stop" those that end generation. "now" stands for the time, in tests.
Each of the others has records as data files have them (records.h):
  {"records": [...], "train": "assistant" | "last" | "all" | "nothing", "add_generation_prompt": BOOL}
  answered by {"records": [["text", "trained text", "text", ...] or {"error": TEXT}, ...]}: the rendered text in pieces,
  of which every second is trained. Where there is more to say it is {"pieces": [...], "left_out": [NAME...], "roles":
  [TEXT...]} in place of the pieces: parts of the record that the text lacks, and roles that were read as others.
"""

import json
import os
import re
import signal
import sys
from datetime import datetime

from chat_environment import make_environment, told
from chat_fields import known_record, names_of_roles
from chat_left_out import left_out
from chat_messages import Chat, Refused
from chat_turns import TurnFinder, common_length
from render_limits import Exceeded, Limits, check_text


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
        self.known_roles = names_of_roles(setup["template"] + (setup.get("tool_template") or ""))

    def pieces_of(self, record, train, add_generation_prompt):
        chat = Chat(record, train)
        if not chat.messages:
            raise Refused("there are no messages")
        renderer = self.plain if chat.variables["tools"] is None else self.tools
        try:
            return renderer.pieces_of(chat, train, add_generation_prompt)
        except Exception:
            as_given = Chat(record, train, parse_arguments=False)
            if as_given.messages == chat.messages:
                raise
            try:  # a template that adds arguments to its text wants a string
                return renderer.pieces_of(as_given, train, add_generation_prompt)
            except Exception:
                pass
            raise

    def left_out(self, record, train, text):
        chat = Chat(record, train)
        return left_out(self.plain if chat.variables["tools"] is None else self.tools, chat, text)


def require_whole_characters(text):
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Refused("the text holds half of a surrogate pair (\\ud800 to \\udfff); remove it") from None


def answer(renderers, limits, request, request_bytes):
    train = request["train"]

    def answer_to(record):
        record, roles = known_record(record, train, renderers.known_roles)
        pieces = renderers.pieces_of(record, train, request["add_generation_prompt"])
        check_text(pieces, request_bytes)
        text = "".join(pieces)
        require_whole_characters(text)
        lacking = renderers.left_out(record, train, text) if train != "nothing" else []
        return {"pieces": pieces, "left_out": lacking, "roles": roles} if lacking or roles else pieces

    answers, exceeded = [], None
    for record in request["records"]:
        if exceeded:  # each of the others would take as long
            answers.append({"error": exceeded})
            continue
        try:
            messages = sum(len(record.get(key) or ()) for key in ("messages", "conversations", "prompt"))
            answers.append(limits.run(lambda: answer_to(record), messages, request_bytes))
        except Exceeded as error:
            exceeded = str(error)
            answers.append({"error": exceeded})
        except Exception as error:  # a template may raise anything
            answers.append({"error": told(error)})
    return {"records": answers}


def read_message(stream):
    """A request, and its bytes."""
    line = stream.readline()
    if not line:
        sys.exit(0)
    return json.loads(stream.read(int(line))), int(line)


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
    limits = Limits()
    setup, size = read_message(requests)
    limits.allow_memory(size)
    try:
        renderers = limits.run(lambda: Renderers(setup), 0, size)
    except (Exception, Exceeded) as error:
        write_message(answers, {"error": told(error)})
        return
    write_message(answers, {})
    while True:
        request, size = read_message(requests)
        limits.allow_memory(size)
        write_message(answers, answer(renderers, limits, request, size))


if __name__ == "__main__":
    try:
        serve()
    except BrokenPipeError:
        os._exit(0)
