"""Tells which parts of a conversation a chat template leaves out."""

import json

from chat_messages import REASONING

# Marks that stand in for parts, from another plane for private use than those that find turns.
FIRST_PROBE = 0x100000
MOST_PROBES = 65000


def is_text(value):
    return isinstance(value, str) and value.strip() != ""


def marked_calls(calls, mark):
    function = {**calls[0].get("function", calls[0])}
    function["name"] = mark + function.get("name", "")
    return [{**calls[0], "function": function} if "function" in calls[0] else function] + calls[1:]


def suspects(messages, text):
    """Parts that the text may lack: their names, and what the message is with a mark in that part."""
    for i, message in enumerate(messages):
        role, content = message["role"], message.get("content")
        calls = message.get("tool_calls")
        reasoning = message.get("reasoning_content")
        if is_text(reasoning) and reasoning.strip() not in text:
            keys = [key for key in REASONING if key in message]
            yield i, '"reasoning_content"', lambda m, mark, keys=keys: {**m, **{key: mark + m[key] for key in keys}}
        if calls:
            yield i, '"tool_calls"', lambda m, mark: {**m, "tool_calls": marked_calls(m["tool_calls"], mark)}
        if is_text(content) and content.strip() not in text and (calls or role not in ("user", "assistant")):
            name = 'the text beside "tool_calls"' if calls else f'the messages of the role "{role}"'
            yield i, name, lambda m, mark: {**m, "content": mark + m["content"]}


def left_out(renderer, chat, text):
    """The names of the parts that the rendered text lacks. The conversation is rendered again with marks in those that it
    may lack; a template that takes offence at them is not asked again."""
    messages, probes = list(chat.messages), []
    for i, name, mark_in in suspects(chat.messages, text):
        mark = chr(FIRST_PROBE + len(probes))
        messages[i] = mark_in(messages[i], mark)
        probes.append((mark, name))
        if len(probes) == MOST_PROBES:
            break
    names = []
    if probes:
        try:
            marked = renderer.render(chat, messages)
            names = [name for mark, name in probes if mark not in marked and json.dumps(mark)[1:-1] not in marked]
        except MemoryError:
            raise
        except Exception:
            pass
    tools = chat.variables["tools"] or []
    functions = [tool.get("function", tool) for tool in tools if isinstance(tool, dict)]
    if functions and not any(str(function.get("name")) in text for function in functions if isinstance(function, dict)):
        names.append('"tools"')
    return sorted(set(names))
