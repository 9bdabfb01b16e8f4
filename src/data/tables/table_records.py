"""Reads Parquet and Arrow files with pyarrow for the program, of which this text is a part; it is not meant to be run by
hand.

Requests come on standard input and answers go to standard output, each a line with a number of bytes and then those
bytes. A request is JSON:
  {}                                               answered by {}, once pyarrow is there
  {"open": PATH, its bytes as hexadecimal digits, "keys": [NAME...]}  answered by {"unread": [NAME...]}: columns that
                                                   are not read, since they neither make a record nor are among the keys
  {"count": true}                                  answered by {"rows": how many the file has}
  {"rows": N, "bytes": M}                          answered by {"done": D} and a line for each of the next rows, JSON
An answer is a line of JSON, in the last case with lines after it; D is how much of the file that was, 0 to 1. {"error": TEXT} says what is wrong with the file.
There are at most N rows, and no more once they have M bytes; none at the file's end. A row is an object of the columns
that records have (records.h). What is null in it is left out, at any depth: in a table every struct has every field.
"""

import json
import mmap
import os
import re
import signal
import sys

import library_holes

NO_PYARROW = 3  # the exit code that the program knows

try:
    import pyarrow
    import pyarrow.ipc
    import pyarrow.parquet
except ImportError:
    sys.exit(NO_PYARROW)
library_holes.end_if(library_holes.of_pyarrow())

# A file's rows are read in parts of about this size, so that memory does not grow with the file.
PART_BYTES = 4 << 20
PART_ROWS = 4096

# What makes a record.
KINDS = (
    ("input_ids",),
    ("messages",),
    ("conversations",),
    ("instruction", "output"),
    ("prompt", "completion"),
    ("text",),
)
JSON_TEXTS = ("messages", "conversations")  # may be lists, or texts of JSON

STREAM_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"


class Refused(Exception):
    """A file that cannot be used; the text says why."""


# ---- From columns to values of JSON ----


def plain(value):
    """Without what is null in structs."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items() if part is not None}
    if isinstance(value, list):
        return [plain(part) for part in value]
    return value


def parsed(text):
    return None if text is None else json.loads(text)


def values_of(array):
    """The array's values as Python has them. Structs in lists are made a column at a time: to_pylist() makes a scalar of
    each value on the way, and takes five times as long."""
    kind = array.type
    if isinstance(kind, pyarrow.BaseExtensionType):
        values = values_of(array.storage)
        return [parsed(value) for value in values] if kind.extension_name == "arrow.json" else values
    if pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind):
        offsets = array.offsets.to_pylist()
        first = offsets[0] if offsets else 0
        inner = values_of(array.values.slice(first, (offsets[-1] if offsets else 0) - first))
        lists = [inner[begin - first : end - first] for begin, end in zip(offsets, offsets[1:])]
        return without_null(array, lists)
    if pyarrow.types.is_struct(kind):
        names = [kind.field(i).name for i in range(kind.num_fields)]
        columns = [values_of(array.field(i)) for i in range(kind.num_fields)]
        if not columns:
            return without_null(array, [{} for _ in range(len(array))])
        rows = [{k: v for k, v in zip(names, row) if v is not None} for row in zip(*columns)]
        return without_null(array, rows)
    if pyarrow.types.is_map(kind):
        return [None if pairs is None else plain(dict(pairs)) for pairs in array.to_pylist()]
    if pyarrow.types.is_nested(kind):
        return [plain(value) for value in array.to_pylist()]
    return array.to_pylist()


def without_null(array, values):
    if array.null_count == 0:
        return values
    return [value if valid else None for value, valid in zip(values, array.is_valid().to_pylist())]


def strange(value):
    raise TypeError(type(value).__name__)


encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=strange).encode


def lines_of(batch, first_row):
    """The rows of a batch as lines of JSON."""
    names = batch.schema.names
    columns = []
    for name, column in zip(names, batch.columns):
        try:
            values = values_of(column)
            if name in JSON_TEXTS and any(isinstance(value, str) for value in values):
                values = [parsed(value) for value in values]
            columns.append(values)
        except UnicodeDecodeError:
            raise Refused(f'column "{name}", rows {first_row} to {first_row + len(column) - 1}: not valid UTF-8')
        except ValueError:
            raise Refused(
                f'column "{name}", rows {first_row} to {first_row + len(column) - 1}: the text is not the JSON that it should be'
            )
    for i, row in enumerate(zip(*columns)):
        record = {name: value for name, value in zip(names, row) if value is not None}
        try:
            yield encode(record).encode()
        except TypeError as error:
            raise Refused(f"row {first_row + i}: a value is of the type {error}, which records do not have")
        except UnicodeEncodeError:
            raise Refused(f"row {first_row + i}: not valid UTF-8")


# ---- Files ----


def wanted_columns(schema, beside):
    """The columns that records have, in the table's order."""
    present = set(schema.names)
    if not any(present.issuperset(kind) for kind in KINDS):
        known = ", ".join(" with ".join(f'"{key}"' for key in kind) for kind in KINDS)
        there = ", ".join(f'"{name}"' for name in schema.names[:40]) or "none"
        if len(schema.names) > 40:
            there += f" and {len(schema.names) - 40} more"
        raise Refused(f"no columns make a record: {known}; it has the columns {there}; rename them (rename_columns)")
    keys = {key for kind in KINDS for key in kind}.union(beside)
    names = [name for name in schema.names if name in keys]
    if len(set(names)) < len(names):
        raise Refused("two columns have one name")
    return names, [name for name in schema.names if name not in keys]


def parts_of(batch):
    """A batch in slices, which share its memory."""
    rows = max(1, min(PART_ROWS, batch.num_rows * PART_BYTES // max(1, batch.nbytes)))
    for begin in range(0, batch.num_rows, rows):
        yield batch.slice(begin, rows)


class ParquetTable:
    def __init__(self, path, beside):
        self.file = pyarrow.parquet.ParquetFile(path, memory_map=False, buffer_size=1 << 20, pre_buffer=False)
        self.columns, self.unread = wanted_columns(self.file.schema_arrow, beside)

    def count(self):
        return self.file.metadata.num_rows

    def done(self, rows):
        return rows / max(1, self.count())

    def batches(self):
        metadata, columns = self.file.metadata, set(self.columns)
        size = 0
        for group in range(metadata.num_row_groups):
            row_group = metadata.row_group(group)
            for i in range(row_group.num_columns):
                column = row_group.column(i)
                if column.path_in_schema.split(".")[0] in columns:
                    size += column.total_uncompressed_size
        rows = max(1, min(PART_ROWS, metadata.num_rows * PART_BYTES // max(1, size)))
        for batch in self.file.iter_batches(batch_size=rows, columns=self.columns, use_threads=False):
            yield from parts_of(batch)


class ArrowTable:
    """The streaming format, as Hugging Face's datasets writes it, or the file format (Feather)."""

    def __init__(self, path, beside):
        with open(path, "rb") as file:
            self.mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.let_go = 0  # bytes at its beginning
        self.source = pyarrow.BufferReader(pyarrow.py_buffer(self.mapped))
        begin = self.source.read(8)
        self.is_stream = begin[:4] == STREAM_END[:4]
        if self.is_stream:
            # A stream that is cut between two batches reads like a whole one.
            self.source.seek(self.source.size() - len(STREAM_END))
            if self.source.read(len(STREAM_END)) != STREAM_END:
                raise Refused("its end is missing; is it cut off?")
        self.columns, self.unread = wanted_columns(self.read().schema, beside)
        self.share = 0  # of the file that has been read

    def read(self):
        self.source.seek(0)
        options = pyarrow.ipc.IpcReadOptions(use_threads=False)
        if self.is_stream:
            return pyarrow.ipc.open_stream(self.source, options=options)
        return pyarrow.ipc.open_file(self.source, options=options)

    def all(self):
        """All batches. What a file says of the places of its values is checked: nothing else looks where they lead."""
        reader = self.read()
        if self.is_stream:
            for batch in reader:
                batch.validate(full=True)
                self.share = self.source.tell() / self.source.size()
                yield batch
                self.give_back(self.source.tell())
            self.share = 1
        else:
            for i in range(reader.num_record_batches):
                self.share = (i + 1) / reader.num_record_batches
                batch = reader.get_batch(i)
                batch.validate(full=True)
                yield batch
                self.let_go = 0  # batches lie in any order
                self.give_back(self.source.size())

    def give_back(self, end):
        """Pages of the file that have been read are no longer this process's memory; they are still the file's."""
        end -= end % mmap.PAGESIZE
        if end - self.let_go >= PART_BYTES and hasattr(mmap, "MADV_DONTNEED"):
            self.mapped.madvise(mmap.MADV_DONTNEED, self.let_go, end - self.let_go)
            self.let_go = end

    def count(self):
        rows = sum(batch.num_rows for batch in self.all())
        self.let_go = 0
        return rows

    def done(self, rows):
        return self.share

    def batches(self):
        for batch in self.all():
            yield from parts_of(batch.select(self.columns))


def open_table(path, beside):
    with open(path, "rb") as file:
        begin = file.read(6)
    if begin[:4] == b"PAR1":
        return ParquetTable(path, beside)
    if begin[:4] == STREAM_END[:4] or begin == b"ARROW1":
        return ArrowTable(path, beside)
    if begin[:4] == b"PARE":
        raise Refused("the Parquet file is encrypted; write it without encryption")
    raise Refused(f"neither Parquet nor Arrow: it begins with {begin!r}" if begin else "the file is empty")


def rows_of(table):
    row = 0
    for batch in table.batches():
        yield from lines_of(batch, row)
        row += batch.num_rows


# ---- Requests ----


class Reading:
    """One file, from its first row to its last."""

    def __init__(self, path, beside):
        self.table = open_table(path, beside)
        self.rows = rows_of(self.table)
        self.taken = 0

    def next(self, most_rows, most_bytes):
        lines, size = [], 0
        while len(lines) < most_rows and size < most_bytes:
            line = next(self.rows, None)
            if line is None:
                break
            lines.append(line)
            size += len(line)
        self.taken += len(lines)
        return b"\n".join([json.dumps({"done": self.table.done(self.taken)}).encode(), *lines])


def answer_to(request, reading):
    """The answer, and what is being read from now on."""
    if "open" in request:
        reading = Reading(bytes.fromhex(request["open"]).decode("utf-8", "surrogateescape"), request["keys"])
        return json.dumps({"unread": reading.table.unread}).encode(), reading
    if "count" in request:
        return json.dumps({"rows": reading.table.count()}).encode(), reading
    if "rows" in request:
        return reading.next(request["rows"], request["bytes"]), reading
    return b"{}", reading


def main():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    reading = None
    while line := requests.readline():
        request = json.loads(requests.read(int(line)))
        try:
            answer, reading = answer_to(request, reading)
        except Refused as refused:
            answer = json.dumps({"error": str(refused)}).encode()
        except (pyarrow.ArrowException, OSError, EOFError) as error:
            text = re.sub(r"\s+", " ", str(error)).strip()
            answer = json.dumps({"error": f"damaged, or not as pyarrow {pyarrow.__version__} reads it: {text}"}).encode()
        answers.write(b"%d\n" % len(answer))
        answers.write(answer)
        answers.flush()


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        os._exit(0)
