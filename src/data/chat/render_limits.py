"""What a chat template may take: it is a file of others, and a program."""

import resource
import signal

MEMORY = 1 << 30  # bytes of address space beside what a record's own text takes
MEMORY_FOR_A_BYTE = 64  # of a request
TEXT = 64 << 20  # characters
TEXT_FOR_A_CHARACTER = 16  # of a record
SECONDS = 5  # of the processor, for a record
SECONDS_FOR_A_MESSAGE, SECONDS_FOR_A_BYTE = 0.05, 2e-7


class Exceeded(BaseException):
    """A limit that is passed; no `except Exception` of a renderer's may hold it up."""


class Limits:
    """Ends the rendering of a record that takes too long: by an exception, and where the interpreter is in one long
    operation, which no exception reaches, by the end of the process, which the program reports."""

    def __init__(self):
        self.running = False
        signal.signal(signal.SIGPROF, self._end)
        signal.signal(signal.SIGVTALRM, signal.SIG_DFL)
        self.most_memory = resource.getrlimit(resource.RLIMIT_AS)[1]

    def _end(self, *_):
        if self.running:
            raise Exceeded

    def allow_memory(self, request_bytes):
        wanted = MEMORY + MEMORY_FOR_A_BYTE * request_bytes
        if self.most_memory != resource.RLIM_INFINITY:
            wanted = min(wanted, self.most_memory)
        resource.setrlimit(resource.RLIMIT_AS, (wanted, self.most_memory))

    def run(self, body, messages, request_bytes):
        """What body() returns; Exceeded says why there is nothing."""
        seconds = SECONDS + SECONDS_FOR_A_MESSAGE * messages + SECONDS_FOR_A_BYTE * request_bytes
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds + 2)
        self.running = True
        try:
            return body()
        except MemoryError:
            raise Exceeded(f"the chat template takes more than {MEMORY >> 30} GB of memory") from None
        except Exceeded as error:
            raise Exceeded(str(error) or f"the chat template takes more than {seconds:.1f} seconds") from None
        finally:
            self.running = False
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def check_text(pieces, record_bytes):
    """A text of which much more is made than the record has."""
    limit = TEXT + TEXT_FOR_A_CHARACTER * record_bytes
    if sum(map(len, pieces)) > limit:
        raise Exceeded(f"the chat template makes a text of more than {limit} characters")
