"""superoffload.train(): the command's results, its sentences as exceptions, and signals."""
import contextlib
import io
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

import superoffload
from superoffload import program, training

MODEL = pathlib.Path(os.environ["SO_SOURCE_DIR"]) / "tests/fixtures/models/qwen3-tied"


@contextlib.contextmanager
def quiet():
    """Takes what the program says; yields (standard output, standard error)."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        yield out, err


@contextlib.contextmanager
def stand_in(script):
    """A shell script in the program's place."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "program"
        file.write_text("#!/bin/sh\n" + script)
        file.chmod(0o755)
        with mock.patch.object(program, "path", lambda: file):
            yield


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.options = {
            "model": MODEL / "model",
            "data": MODEL / "data.jsonl",
            "output_dir": self.folder / "out",
            "cache_dir": self.folder / "cache",
            "device": "cpu",
            "max_steps": 2,
        }


class Training(InFolder):
    def test_takes_names_of_the_hub(self):
        cache = MODEL.parents[1] / "hub" / "cache"
        options = self.options | {"model": "tiny/llama", "data": "tiny/chats"}
        with quiet(), mock.patch.dict(os.environ, {"HF_HUB_CACHE": str(cache)}):
            superoffload.train(**options)
            with self.assertRaises(superoffload.UserError) as raised:
                superoffload.train(**options | {"data": "tatsu-lab/alpaca@v1"})
        start = json.loads((self.folder / "out" / "metrics.jsonl").read_text().splitlines()[0])["start"]
        self.assertRegex(start["model"], "^tiny/llama@[0-9a-f]{40}$")
        self.assertTrue(
            str(raised.exception).endswith(
                "hf download tatsu-lab/alpaca --repo-type dataset --revision v1, or give download=True"
            ),
            raised.exception,
        )

    def test_writes_the_model_that_the_command_writes(self):
        with quiet() as (out, err):
            options = {"learning_rate": 2e-5, "packing": False, "lr_scheduler": "cosine", "config": None, "resume": False}
            self.assertIsNone(superoffload.train(**self.options | options))
        self.assertIn("2/2", err.getvalue())
        other = self.folder / "other"
        words = ["train", "--model", MODEL / "model", "--data", MODEL / "data.jsonl", "--output_dir", other]
        words += ["--device", "cpu", "--max_steps", "2", "--lr", "2e-5", "--packing", "false", "--quiet"]
        words += ["--lr_scheduler", "cosine"]
        subprocess.run([program.path(), *words, "--cache_dir", self.folder / "cache"], check=True)
        written = (self.folder / "out/model.safetensors").read_bytes()
        self.assertEqual(written, (other / "model.safetensors").read_bytes())
        self.assertNotEqual(written, (MODEL / "model/model.safetensors").read_bytes())

    def test_a_list_stands_for_commas(self):
        copy = self.folder / "copy.jsonl"
        shutil.copy(MODEL / "data.jsonl", copy)
        data = [MODEL / "data.jsonl", str(copy)]
        with quiet() as (_, err):
            superoffload.train(**self.options | {"data": data, "dry_run": True})
        self.assertIn("of 2 files", err.getvalue())

    def test_runs_in_a_thread_beside_the_main_one(self):
        with quiet():
            runner = threading.Thread(target=superoffload.train, kwargs=self.options)
            runner.start()
            runner.join()
        self.assertTrue((self.folder / "out/model.safetensors").exists())

    def test_a_stream_that_is_closed_does_not_hold_up_the_run(self):
        closed = io.StringIO()
        closed.close()
        with quiet(), contextlib.redirect_stderr(closed):
            superoffload.train(**self.options)
        self.assertTrue((self.folder / "out/model.safetensors").exists())


class Refusals(InFolder):
    def refused(self, **options):
        with quiet(), self.assertRaises(superoffload.UserError) as refusal:
            superoffload.train(**self.options | options)
        self.assertFalse((self.folder / "out").exists())
        return str(refusal.exception)

    def test_have_the_sentence_of_the_program(self):
        self.assertEqual(self.refused(epochs=2), 'unknown option "epochs=2"; here it is num_train_epochs')
        self.assertIn("lr needs a value", self.refused(lr=True))
        self.assertTrue(self.refused(lr=-1).startswith("lr: "))
        self.assertIn("no_such_model", self.refused(model="no_such_model"))

    def test_are_value_errors(self):
        with quiet(), self.assertRaises(ValueError):
            superoffload.train(**self.options, lr="fast")

    def test_of_values_that_are_none(self):
        self.assertIn("lr: a dict is no value of an option", self.refused(lr={}))
        self.assertIn("'a,b' has a comma", self.refused(data=["a,b", "c"]))
        self.assertIn("train() has no option 'help'", self.refused(help=True))

    def test_what_does_not_fit_is_one(self):
        self.assertRegex(self.refused(host_memory="1MB"), "^not enough memory: .*; it would fit with host_memory")


class Ends(unittest.TestCase):
    """What becomes of each exit code."""

    def raised(self, script, kind):
        with stand_in(script), quiet(), self.assertRaises(kind) as raised:
            superoffload.train()
        return str(raised.exception)

    def test_each_exit_code_has_its_exception(self):
        say = "echo loading >&2; echo 'superoffload: out of memory' >&2; exit "
        self.assertEqual(self.raised(say + "1", superoffload.SystemFailure), "out of memory")
        self.assertEqual(self.raised(say + "2", superoffload.UserError), "out of memory")
        self.assertEqual(self.raised(say + "70", superoffload.Bug), "out of memory")

    def test_a_table_belongs_to_the_sentence(self):
        script = "printf 'error: no\\nsuperoffload: does not fit\\n  weights  1 GB\\n\\n  state  2 GB\\n' >&2; exit 2"
        self.assertEqual(self.raised(script, superoffload.UserError), "does not fit\n  weights  1 GB\n\n  state  2 GB")

    def test_the_sentence_is_said_once(self):
        script = "printf 'loading\\nsuperoffload: does not fit\\n  weights  1 GB\\n' >&2; exit 2"
        with stand_in(script), quiet() as (_, err), self.assertRaises(superoffload.UserError):
            superoffload.train()
        self.assertEqual(err.getvalue(), "loading\n")

    def test_advice_is_given_as_keywords(self):
        for said, text in (
            ("out holds a run; continue it with --resume, or choose another --output_dir",
             "out holds a run; continue it with resume=True, or choose another output_dir"),
            ("continue with --resume", "continue with resume=True"),
            ("continue with --resume /a/--resume", "continue with resume /a/--resume"),
            ("(--max_skipped_steps 4)", "(max_skipped_steps 4)"),
            ("look at it with superoffload tokenize --show FILE", "look at it with superoffload tokenize --show FILE"),
        ):
            with self.subTest(said):
                self.assertEqual(self.raised(f"echo 'superoffload: {said}' >&2; exit 2", superoffload.UserError), text)

    def test_silence_is_named(self):
        self.assertEqual(
            self.raised("exit 3", superoffload.SystemFailure), "the program ended with exit code 3 and said nothing"
        )

    def test_a_library_that_is_missing(self):
        script = "echo 'libdnnl.so.2: cannot open shared object file' >&2; exit 127"
        text = self.raised(script, superoffload.SystemFailure)
        self.assertTrue(text.startswith("libdnnl.so.2: cannot open shared object file; scripts/install_dep"), text)

    def test_a_program_that_is_missing(self):
        with mock.patch.object(program, "path", lambda: pathlib.Path("/no/such")):
            with self.assertRaisesRegex(superoffload.SystemFailure, "^/no/such: No such file or directory; install"):
                superoffload.train()

    def test_a_signal_that_ends_the_program(self):
        text = self.raised("echo step 3 >&2; kill -KILL $$", superoffload.SystemFailure)
        self.assertEqual(text, "SIGKILL ended the program; its last line was: step 3")
        text = self.raised("kill -TERM $$", superoffload.Interrupted)
        self.assertEqual(text, "SIGTERM ended the run before its first step; nothing was saved")

    def test_this_python_is_the_programs(self):
        with stand_in("command -v python3; exit 0"), quiet() as (out, _):
            superoffload.train()
        self.assertEqual(pathlib.Path(out.getvalue().strip()).parent, pathlib.Path(sys.executable).parent)

    def test_any_bytes_may_be_said(self):
        with stand_in("printf '\\377\\n' >&2; exit 0"), quiet() as (_, err):
            superoffload.train()
        self.assertEqual(err.getvalue(), "\N{REPLACEMENT CHARACTER}\n")


class Signals(InFolder):
    def interrupted_by(self, number):
        """Trains until a signal comes after a step; returns the text of Interrupted."""
        metrics = self.folder / "out/metrics.jsonl"

        def interrupt():
            while not (metrics.exists() and '"loss"' in metrics.read_text()):
                time.sleep(0.01)
            os.kill(os.getpid(), number)

        watcher = threading.Thread(target=interrupt, daemon=True)
        watcher.start()
        before = signal.getsignal(number)
        with quiet(), self.assertRaises(superoffload.Interrupted) as stopped:
            superoffload.train(**self.options | {"max_steps": 1000000, "quiet": True})
        self.assertEqual(signal.getsignal(number), before)
        return str(stopped.exception)

    def test_stop_a_run_that_goes_on_from_there(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(signal.Signals(number).name):
                self.setUp()
                text = self.interrupted_by(number)
                name = signal.Signals(number).name
                self.assertRegex(text, f"^interrupted by {name}: saved .*; continue with resume=True$")
                lines = (self.folder / "out/metrics.jsonl").read_text().splitlines()
                steps = [json.loads(line)["step"] for line in lines if '"loss"' in line]
                with quiet() as (out, _):
                    superoffload.train(**self.options | {"max_steps": 1000000}, resume=True, dry_run=True)
                self.assertRegex(out.getvalue(), f"would go on from .* at step {steps[-1]}\\n")

    def test_of_the_callers_own_stay_the_callers(self):
        received = []
        before = signal.signal(signal.SIGUSR1, lambda number, frame: received.append(number))
        self.addCleanup(signal.signal, signal.SIGUSR1, before)
        with stand_in(f"kill -USR1 {os.getpid()}; sleep 0.2; exit 0"), quiet():
            superoffload.train()
        self.assertEqual(received, [signal.SIGUSR1])

    def test_a_handler_that_throws_ends_the_run(self):
        def throw(number, frame):
            raise TimeoutError

        before = signal.signal(signal.SIGALRM, throw)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        begun = time.monotonic()
        with stand_in("exec sleep 60"), quiet(), self.assertRaises(TimeoutError):
            superoffload.train()
        self.assertLess(time.monotonic() - begun, 30)


class Words(unittest.TestCase):
    def test_values_become_words(self):
        class Whole(int):
            pass

        for value, text in (
            (True, "true"),
            (False, "false"),
            (3, "3"),
            (Whole(4), "4"),
            (1e-5, "1e-05"),
            (0.1, "0.1"),
            ("", ""),
            (pathlib.Path("/a b"), "/a b"),
            (("a", 2), "a,2"),
        ):
            self.assertEqual(training._text("name", value), text)


if __name__ == "__main__":
    unittest.main()
