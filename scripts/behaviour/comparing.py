"""Names every difference between two recordings."""
import collections
import fnmatch
import json

MISSING = "(not there)"
SHOWN = 3  # differences of one kind that are told with their values
COMPUTED = ("step", "loss", "eval_loss", "grad_norm", "lr")  # of a line of metrics.jsonl


def matches(case, patterns):
    return not patterns or any(fnmatch.fnmatch(case, pattern) for pattern in patterns)


def differences(a, b, path=()):
    """(path, value, other value) of every leaf that differs."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted({**a, **b}):
            if key != "command":  # is what was asked, under names that may change
                yield from differences(a.get(key, MISSING), b.get(key, MISSING), (*path, key))
    elif isinstance(a, list) and isinstance(b, list) and is_text(a) and is_text(b):
        gone, new = lines_of_one(a, b), lines_of_one(b, a)
        for i in range(max(len(gone), len(new))):
            yield (*path, "line"), (gone[i : i + 1] or [MISSING])[0], (new[i : i + 1] or [MISSING])[0]
        if not gone and not new and a != b:
            yield (*path, "order of lines"), a, b
    elif isinstance(a, list) and isinstance(b, list):
        for i in range(max(len(a), len(b))):
            one, other = (side[i] if i < len(side) else MISSING for side in (a, b))
            yield from differences(one, other, (*path, f"[{i}]"))
    elif a != b or type(a) is not type(b):
        yield path, a, b


def is_text(lines):
    return all(isinstance(line, str) for line in lines)


def lines_of_one(a, b):
    """Lines of `a` that `b` has not, as often as it has them not."""
    others, found = collections.Counter(b), []
    for line in a:
        others[line] -= 1
        if others[line] < 0:
            found.append(line)
    return found


def numbers_of(case):
    """What a training computed: losses and gradient norms by step, and its tensors; None if a command has failed."""
    if any(step["exit"] != 0 for step in case["steps"]):
        return None
    found = {}
    for name, content in case["files"].items():
        if name.endswith("metrics.jsonl"):
            found[name] = [{key: line[key] for key in COMPUTED if key in line} for line in content]
        elif name.endswith(".safetensors"):
            found[name] = content
    return found


def keep_numbers(a, b):
    """Both sides with numbers_of() their cases, of those that both ran; and how many cases only one of them ran."""
    sides, alone = ({}, {}), 0
    for group in {**a, **b}:
        for side in sides:
            side[group] = {}
        for name in {**a.get(group, {}), **b.get(group, {})}:
            pair = [numbers_of(side[group][name]) if name in side.get(group, {}) else None for side in (a, b)]
            if None not in pair:
                for side, numbers in zip(sides, pair):
                    side[group][name] = numbers
            elif pair != [None, None]:
                alone += 1
    return *sides, alone


def compare(a, b, only, show_all):
    """Prints the differences by kind: group, file and field. Returns how many cases differ, and of how many."""
    kinds, differing, total = collections.defaultdict(list), set(), 0
    for group in sorted({**a, **b}):
        for name in {**a.get(group, {}), **b.get(group, {})}:
            case = f"{group}: {name}"
            if not matches(case, only):
                continue
            total += 1
            pair = [side.get(group, {}).get(name, MISSING) for side in (a, b)]
            for path, one, other in differences(*pair):
                differing.add(case)
                kinds[(group, " ".join(path))].append((case, one, other))
    for (group, field), found in kinds.items():
        print(f"{group}: {field or 'the case'}: {len(found)} differences")
        for case, one, other in found if show_all else found[:SHOWN]:
            print(f"  {case}\n    - {shown(one, show_all)}\n    + {shown(other, show_all)}")
        if len(found) > SHOWN and not show_all:
            print(f"  ... and {len(found) - SHOWN} more (--all shows them)")
    return len(differing), total


def shown(value, whole):
    text = value if isinstance(value, str) else json.dumps(value)
    return text if whole or len(text) <= 400 else text[:400] + " ..."
