"""train(): a run of the program as a function."""
import contextlib
import numbers
import os
import re
import signal
import subprocess
import sys
import threading

from superoffload import errors, program

# A run saves and stops upon these (docs/running.md).
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
_INTERRUPTED = 130
_COMMAND = re.compile(r"superoffload [a-z]+ .*--")
_OPTION = re.compile(r"(?<![^\s(\"'])--([a-z][a-z0-9_]*)(?=([,;.)]|\s*$)?)")
_FETCH = re.compile(r"(hf download [^,(;]*)")  # a command of another program, to be run as it stands
# Which the program advises without a value.
_SWITCHES = ("resume", "overwrite_output_dir", "load_best_model_at_end", "download")


def train(**options):
    """Fine-tunes a model, as `superoffload train` does: the keyword --lr of the command is lr here.

    Values are texts, numbers, booleans and paths. A list or tuple stands for a value with commas ("a,b"). None leaves
    an option at its default. `superoffload train --help` lists the options; the program checks them.

    The run is a process of its own, so its memory is free again afterwards. Results go to sys.stdout, progress and
    messages to sys.stderr, but for the sentence of a run that fails, which is the exception's. Signals that stop a run (Ctrl-C among them) reach it while train() is called from the main thread.

    Returns None once the model is written, or with dry_run=True once the plan is made; metrics are in
    output_dir/metrics.jsonl. Raises UserError, SystemFailure, Bug (all of them Error), or Interrupted when a signal has
    stopped the run; the exception's text is the program's sentence.
    """
    if options.get("resume") is False:  # its other values are no booleans
        del options["resume"]
    arguments = ["train", *(_argument(name, value) for name, value in options.items() if value is not None)]
    code, said = _run(arguments)
    if code != 0:
        raise _exception(code, said)


def _argument(name, value):
    if name in ("help", "h"):
        raise errors.UserError(f"train() has no option {name!r}; `superoffload train --help` lists the options")
    if value is True:  # --name alone: of resume, too, which takes a checkpoint's name otherwise
        return f"--{name}"
    return f"--{name}={_text(name, value)}"


def _text(name, value):
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, numbers.Integral):
        return str(int(value))
    if isinstance(value, numbers.Real):
        return repr(float(value))
    if isinstance(value, (str, os.PathLike)):
        return os.fsdecode(value)
    if isinstance(value, (list, tuple)):
        items = [_text(name, item) for item in value]
        for item in items:
            if "," in item:
                raise errors.UserError(f"{name}: {item!r} has a comma, which separates the values of a list; rename it")
        return ",".join(items)
    raise errors.UserError(
        f"{name}: a {type(value).__name__} is no value of an option; give a text, a number, a bool, a path, or a list"
    )


def _run(arguments):
    """Runs the program; returns its exit code (negative: the signal that ended it) and the last lines of its log."""
    command = ["superoffload", *arguments]
    try:
        child = subprocess.Popen(
            command,
            executable=program.path(),
            env=program.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:
        raise errors.SystemFailure(f"{program.path()}: {error.strerror}; install the package again") from None
    said = _LastWords()
    with child, _passing_signals_to(child):
        pumps = [
            threading.Thread(target=_pump, args=(child.stdout, sys.stdout, None)),
            threading.Thread(target=_pump, args=(child.stderr, sys.stderr, said)),
        ]
        for pump in pumps:
            pump.start()
        try:
            code = child.wait()
        except BaseException:  # as a caller's own signal handler may throw it
            child.terminate()
            raise
        finally:
            for pump in pumps:
                pump.join()
    return code, said


class _LastWords:
    """The end of the log: the sentence that the program ends with where it fails, and the last line before it."""

    def __init__(self):
        self.failure = []  # begins with "superoffload: ", and may have a table behind it
        self.error = ""
        self.line = ""

    def add(self, line):
        """Takes a line; returns whether it belongs to the sentence that the exception has."""
        line = line.rstrip("\n")
        if line.startswith("superoffload: "):
            self.failure = [line.removeprefix("superoffload: ")]
        elif self.failure:
            self.failure.append(line)
        elif line.startswith("error: "):
            self.error = line.removeprefix("error: ")
        if line:
            self.line = line
        return bool(self.failure)

    def sentence(self):
        return "\n".join(self.failure) or self.error or self.line


def _as_keyword(found):
    return found[1] + ("=True" if found[1] in _SWITCHES and found[2] else "")


def _as_keywords(line):
    """The program's advice as it is given to train(): max_steps for --max_steps. Command lines stay as they are."""
    if _COMMAND.search(line):
        return line
    parts = _FETCH.split(line)
    for i in range(0, len(parts), 2):
        parts[i] = _OPTION.sub(_as_keyword, parts[i])
    return "".join(parts)


def _pump(source, to, said):
    """Writes what comes from the program to one of this process's streams, which may be a notebook's."""
    for line in source:
        if said is not None:
            line = _as_keywords(line)
            if said.add(line):
                continue
        with contextlib.suppress(Exception):  # a stream that is closed must not hold up the run
            to.write(line)
            to.flush()


@contextlib.contextmanager
def _passing_signals_to(child):
    """Passes signals that stop a run on to the child. Those that this process handles itself, or ignores, stay so.

    A terminal sends Ctrl-C to both processes; the program takes two within a second for one.
    """
    replaced = {}
    if threading.current_thread() is threading.main_thread():
        for number in _STOP_SIGNALS:
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                replaced[number] = signal.signal(number, lambda received, frame: child.send_signal(received))
    try:
        yield
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)


def _exception(code, said):
    sentence = said.sentence() or f"the program ended with exit code {code} and said nothing"
    if code == _INTERRUPTED:
        return errors.Interrupted(sentence)
    if code < 0:
        name = signal.Signals(-code).name
        if -code in _STOP_SIGNALS:
            return errors.Interrupted(f"{name} ended the run before its first step; nothing was saved")
        return errors.SystemFailure(f"{name} ended the program; its last line was: {said.line}")
    if code == 2:
        return errors.UserError(sentence)
    if code == 70:
        return errors.Bug(sentence)
    if code == 127 and not said.failure:
        return errors.SystemFailure(f"{sentence}; scripts/install_dependencies.sh of the sources installs libraries")
    return errors.SystemFailure(sentence)
