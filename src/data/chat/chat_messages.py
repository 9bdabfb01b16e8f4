"""A record's messages, as chat templates see them."""

import json


class Refused(Exception):
    """A record, or a template, that cannot be used; the text says why."""


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


def plain_message(message, parse_arguments):
    """A message as templates see it: keys that are null are left out, as transformers does."""
    if "role" not in message:  # ShareGPT
        message = {"role": SHAREGPT_ROLES[message["from"]], "content": message["value"]}
    message = {key: value for key, value in message.items() if value is not None and key != "weight"}
    if "content" in message:
        message["content"] = joined_text(message["content"])
    if "tool_calls" in message and parse_arguments:
        message["tool_calls"] = [with_parsed_arguments(call) for call in message["tool_calls"]]
    reasoning = next((message[key] for key in REASONING if key in message), None)
    if reasoning is not None:
        message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    return message


class Chat:
    """A record's messages, which of them are trained, and what else the template sees."""

    def __init__(self, record, train, parse_arguments=True):
        if record.get("messages") is not None:
            raw, first = record["messages"], 0
        elif record.get("conversations") is not None:
            raw, first = record["conversations"], 0
        else:
            raw, first = record["prompt"] + record["completion"], len(record["prompt"])
        for i, message in enumerate(raw):
            if message.get("weight") not in (None, 0, 1):
                raise Refused(f'message {i + 1}: "weight" is {message["weight"]!r}; it is 0, for what is not trained, or 1')
        self.messages = [plain_message(message, parse_arguments) for message in raw]
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
