"""Records that other programs write, in the form that the rest of this program and chat templates know."""

import re

from chat_messages import Refused

# Each says of a message, by 0 or false, that it is not trained (OpenAI, axolotl, ms-swift, verl).
FLAGS = ("weight", "train", "training", "trainable", "loss", "loss_mask", "loss_scale")
# Names that no template knows of roles that every template knows.
ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "model": "assistant", "bot": "assistant"}
# Names that some templates know.
TOOL_ROLES = {"function": "tool", "observation": "tool", "tool_response": "tool"}


def names_of_roles(template):
    """What a template's expressions about roles spell."""
    names = set()
    for expression in re.findall(r"\{[{%].*?[%}]\}", template, re.DOTALL):
        if "role" in expression:
            names.update(re.findall(r"""['"](\w+)['"]""", expression))
    return names


def is_trained(message):
    return all(message.get(flag) not in (0, False) for flag in FLAGS) and message.get("masked") not in (1, True)


def known_message(message, known_roles, roles):
    """`roles` gets the names that are read as others."""
    if not is_trained(message):
        message = {**message, "weight": 0}
    role = message.get("role")
    other = ROLES.get(role) or (None if role in known_roles else TOOL_ROLES.get(role))
    if other:
        message = {**message, "role": other}
        if role != "function":  # OpenAI's own older name
            roles.append(f"{role} as {other}")
    call = message.get("function_call")
    if call:
        message = {**message, "tool_calls": [{"type": "function", "function": call}]}
    return {key: value for key, value in message.items() if key != "function_call"} if "function_call" in message else message


def known_record(record, train, known_roles):
    """The record, and the roles that are read as others."""
    roles, known, messages = [], dict(record), []
    # As Chat takes them.
    kinds = (("messages",), ("conversations",), ("prompt", "completion"))
    for key in next(kind for kind in kinds if record.get(kind[0]) is not None):
        known[key] = [known_message(message, known_roles, roles) for message in record[key]]
        messages += known[key]
    if train == "all":
        for i, message in enumerate(messages):
            if not is_trained(message):
                raise Refused(f"message {i + 1} is marked as not trained, and --train_on_prompt trains all; leave one out")
    if record.get("functions") and not record.get("tools"):
        known["tools"] = [{"type": "function", "function": function} for function in record["functions"]]
    first = messages[0] if messages else {}
    if record.get("system") and "system" in (first.get("role"), first.get("from")):
        if (first.get("content") or first.get("value")) != record["system"]:
            raise Refused('the record has "system" and its first message is another system message; remove one of them')
        del known["system"]
    return known, roles
