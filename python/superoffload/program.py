"""The program that the package carries: where it is, and the command `superoffload`, which becomes it."""
import importlib.util
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

    It finds NVIDIA's packages that lie beside this one (base/shared_library.h). Where this Python imports from other
    folders that have some, the loader's path leads to all of them: pip takes those of the system for installed, below
    an environment with --system-site-packages or a package in the user's folder.
    """
    variables = dict(os.environ)
    folder = os.path.dirname(sys.executable) if sys.executable else ""
    if folder:
        variables["PATH"] = os.pathsep.join([folder, variables.get("PATH", os.defpath)])
    libraries = _nvidia_folders()
    if libraries:
        variables["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [*libraries, variables.get("LD_LIBRARY_PATH")]))
    return variables


def _nvidia_folders():
    spec = importlib.util.find_spec("nvidia")
    places = spec.submodule_search_locations if spec else None
    # Those of CUDA 12 have a cuDNN of the same name, which does not go with the program.
    places = [place for place in map(pathlib.Path, places or ()) if (place / "cu13").is_dir()]
    if places == [pathlib.Path(__file__).parents[1] / "nvidia"]:
        return []
    # Those beside this one too, in Python's order: parts of a cuDNN are looked for in the loader's path first.
    return [str(folder) for place in places for folder in sorted(place.glob("*/lib"))]


def main():
    """Becomes the program, with this process's arguments."""
    program = path()
    try:
        os.execve(program, ["superoffload", *sys.argv[1:]], environment())
    except OSError as error:
        sys.exit(f"superoffload: {program}: {error.strerror}; install the package again")
