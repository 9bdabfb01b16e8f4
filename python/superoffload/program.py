"""The program that the package carries: where it is, and the command `superoffload`, which becomes it."""
import os
import pathlib
import sys


def path():
    """The program's file."""
    return pathlib.Path(__file__).parent / "bin" / "superoffload"


def environment():
    """This process's environment, for the program.

    The program renders chat templates and reads Parquet files by the python3 of PATH. This Python comes first there,
    since what was installed beside the package (jinja2, pyarrow) is in its environment, which need not be activated.
    """
    variables = dict(os.environ)
    folder = os.path.dirname(sys.executable) if sys.executable else ""
    if folder:
        variables["PATH"] = os.pathsep.join([folder, variables.get("PATH", os.defpath)])
    return variables


def main():
    """Becomes the program, with this process's arguments."""
    program = path()
    try:
        os.execve(program, ["superoffload", *sys.argv[1:]], environment())
    except OSError as error:
        sys.exit(f"superoffload: {program}: {error.strerror}; install the package again")
