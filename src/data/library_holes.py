"""Known holes of the libraries that read what others have written, for the programs of which this text is a part. Run by
hand, or by an installation, it says what is wrong with those that this Python has:
  python3 -I library_holes.py jinja2 pyarrow

This is the one list of them. A library gets into it if a file or a template of somebody else's can run code, or reach
what it must not, through a hole that is known and mended. Holes that nothing here comes near are not in it: Jinja2's in
xmlattr (CVE-2024-34064) and in names of template files (CVE-2024-56201), Arrow's in buffers that are read ahead
(CVE-2026-25087).
"""

import re
import sys

REFUSED = 4  # the exit code that the program knows

# Jinja2's sandbox keeps a template from attributes that lead to Python's own (__class__, __globals__). Distributions mend
# it and leave the version as it is (Debian 12 has 3.1.2-1+deb12u3), so each hole is tried. "call" stands for any filter
# that calls what it is given.
JINJA2_ESCAPES = (
    ("CVE-2016-10745", '{{ "{0.__class__}".format(1) }}'),
    ("CVE-2019-10906", '{{ "{a.__class__}".format_map({"a": 1}) }}'),
    ("CVE-2024-56326", '{{ "{0.__class__}".format | call(1) }}'),
    ("CVE-2024-56326", '{{ (["{0.__class__}"] | map(attribute="format") | list)[0] | call(1) }}'),
    ("CVE-2025-27516", '{{ ("{0.__class__}" | attr("format"))(1) }}'),
    ("CVE-2025-27516", '{{ ((["{0.__class__}"] | map("attr", "format") | list)[0])(1) }}'),
    ("the sandbox does nothing", '{{ 1 | attr("__class__") }}{{ 1.__class__ }}'),
)
JINJA2 = "3.1.6"

# Reading an Arrow or a Parquet file whose schema asks for it unpickled a text of the file: CVE-2023-47248.
PYARROW = (14, 0, 1)


def of_jinja2():
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment()
    environment.filters["call"] = lambda function, *arguments: function(*arguments)
    for name, template in JINJA2_ESCAPES:
        try:
            text = environment.from_string(template).render()
        except jinja2.exceptions.SecurityError:
            continue
        if "class" in text:
            return (
                f"Jinja2 {jinja2.__version__} lets a chat template out of its sandbox ({name}): install version {JINJA2} "
                "or later, or the distribution's package with its security updates (Debian and Ubuntu: apt install "
                "python3-jinja2)"
            )
    return None


def of_pyarrow():
    import pyarrow

    version = tuple(int(part) for part in re.findall(r"\d+", pyarrow.__version__)[:3])
    if version < PYARROW:
        wanted = ".".join(map(str, PYARROW))
        return (
            f"pyarrow {pyarrow.__version__} runs code that a file brings (CVE-2023-47248): install version {wanted} or "
            f"later (python3 -m pip install 'pyarrow>={wanted}')"
        )
    return None


def end_if(hole):
    if hole is not None:
        print(hole, file=sys.stderr)
        sys.exit(REFUSED)


if __name__ == "__main__":
    for library in sys.argv[1:]:
        end_if({"jinja2": of_jinja2, "pyarrow": of_pyarrow}[library]())
