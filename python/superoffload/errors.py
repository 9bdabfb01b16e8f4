"""The exceptions of the package. Their text is the program's own sentence, with the cause and the fix."""


class Error(Exception):
    """The program ended without a result."""


class UserError(Error, ValueError):
    """The caller can mend it: an option, a file, or a plan that does not fit."""


class SystemFailure(Error, RuntimeError):
    """The system failed (memory, disk, a signal that ends the program), or the run diverged."""


class Bug(Error):
    """A mistake of the program's own; please report it."""


class Interrupted(KeyboardInterrupt):
    """A signal such as Ctrl-C stopped the run. The text says where it was saved, if it was.

    A KeyboardInterrupt, so that code which catches Exception does not go on after Ctrl-C.
    """
