"""The Jinja environment of chat templates: the one in which transformers (5.23) renders them, so that the text is the
same."""

import json
import sys
from datetime import datetime

import library_holes
from chat_messages import Refused
from render_limits import Exceeded

NO_JINJA = 3  # the exit code that the program knows

try:
    import jinja2
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment
except ImportError:
    sys.exit(NO_JINJA)
library_holes.end_if(library_holes.of_jinja2())


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


def told(error):
    """A template's exception in one line."""
    if isinstance(error, (Refused, Exceeded)):
        return str(error)
    name = type(error).__name__
    text = " ".join(str(error).split())
    line = getattr(error, "lineno", None)
    where = f", line {line}" if isinstance(line, int) else ""
    if type(error) is jinja2.exceptions.TemplateError:
        return f"the chat template refuses the messages: {text}"
    return f"the chat template fails{where}: {name}: {text}"
