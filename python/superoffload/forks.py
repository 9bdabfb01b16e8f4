"""A process that was forked has the memory of the optimizers, and none of their threads: there they refuse to work."""
import os
import weakref

from superoffload import errors

_living = weakref.WeakSet()
_left = []  # the parent's engines: their destructors would wait for threads that are not here


def watch(optimizer):
    """optimizer: has leave_to_parent(), which returns its engine, and has Left in its place then."""
    _living.add(optimizer)


class Left:
    """In the engine's place."""

    def __getattr__(self, name):
        raise errors.UserError(
            "this optimizer is the parent's, from before the process was forked, and its threads are there: make "
            "another one here, and load its state_dict(); or start processes by multiprocessing's \"spawn\""
        )


def _after_in_child():
    for optimizer in list(_living):
        engine = optimizer.leave_to_parent()
        if hasattr(type(engine), "leak"):
            engine.leak()
        _left.append(engine)


os.register_at_fork(after_in_child=_after_in_child)
