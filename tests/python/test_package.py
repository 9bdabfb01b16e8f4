"""The installed package: where it is, its version, the command that it brings, and what that is started with."""
import importlib.metadata
import importlib.util
import os
import pathlib
import re
import stat
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import superoffload
from superoffload import program

SOURCE = pathlib.Path(os.environ["SO_SOURCE_DIR"])
COMMAND = pathlib.Path(sys.executable).parent / "superoffload"


class Package(unittest.TestCase):
    def test_is_the_wheels_and_not_the_sources(self):
        self.assertTrue(pathlib.Path(superoffload.__file__).is_relative_to(sys.prefix))

    def test_has_the_version_of_the_program(self):
        text = (SOURCE / "CMakeLists.txt").read_text()
        version = re.search(r"project\(superoffload VERSION ([0-9.]+)", text)[1]
        self.assertEqual(importlib.metadata.version("superoffload"), version)
        said = subprocess.run([COMMAND, "--version"], capture_output=True, text=True, check=True).stdout
        self.assertIn(version, said)

    def test_carries_the_license(self):
        names = [file.name for file in importlib.metadata.files("superoffload")]
        self.assertIn("LICENSE", names)

    def test_the_program_may_be_run_by_everyone(self):
        self.assertEqual(stat.S_IMODE(program.path().stat().st_mode) & 0o555, 0o555)

    def test_exports_what_it_names(self):
        for name in superoffload.__all__:
            if name != "AdamW":  # needs PyTorch
                self.assertTrue(getattr(superoffload, name).__doc__, name)

    def test_has_an_extension_that_this_python_loads(self):
        from superoffload import _engine

        self.assertTrue(issubclass(_engine.Bug, superoffload.Bug))
        self.assertTrue(issubclass(_engine.UserError, superoffload.UserError))

    @unittest.skipIf(importlib.util.find_spec("torch"), "PyTorch is here")
    def test_says_what_the_optimizer_needs(self):
        with self.assertRaisesRegex(superoffload.UserError, "^superoffload.AdamW needs PyTorch: pip install torch$"):
            superoffload.AdamW


class Command(unittest.TestCase):
    def test_passes_arguments_and_exit_code(self):
        ended = subprocess.run([COMMAND, "train", "--lrate", "1"], capture_output=True, text=True)
        self.assertEqual(ended.returncode, 2)
        self.assertTrue(ended.stderr.startswith("superoffload: unknown option \"--lrate\""), ended.stderr)
        self.assertEqual(ended.stdout, "")

    def test_reads_standard_input_and_writes_standard_output(self):
        ended = subprocess.run([COMMAND, "help", "plan"], capture_output=True, text=True, check=True)
        self.assertIn("--hardware", ended.stdout)

    def test_says_so_where_the_program_is_missing(self):
        code = "from superoffload import program; program.path = lambda: '/no/such'; program.main()"
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        self.assertEqual(ended.returncode, 1)
        self.assertEqual(ended.stderr, "superoffload: /no/such: No such file or directory; install the package again\n")


class Environment(unittest.TestCase):
    """Of the program: where it finds NVIDIA's packages that are not beside its own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.own, self.other = (pathlib.Path(folder.name) / name for name in ("own", "other"))
        here = str(self.own / "superoffload" / "program.py")
        for patch in (mock.patch.object(sys, "path", [str(self.own), *sys.path, str(self.other)]),
                      mock.patch.object(program, "__file__", here), mock.patch.dict(os.environ)):
            patch.start()
            self.addCleanup(patch.stop)
        os.environ.pop("LD_LIBRARY_PATH", None)

    def install(self, site, *packages):
        folders = [site / "nvidia" / package / "lib" for package in packages]
        for folder in folders:
            folder.mkdir(parents=True)
        importlib.invalidate_caches()
        return [str(folder) for folder in folders]

    def libraries(self):
        return program.environment().get("LD_LIBRARY_PATH")

    def test_has_nvidias_packages_of_an_environment_below(self):
        others = self.install(self.other, "cu13", "cudnn")
        self.assertEqual(self.libraries(), ":".join(others))
        os.environ["LD_LIBRARY_PATH"] = "/opt/lib"
        self.assertEqual(self.libraries(), ":".join([*others, "/opt/lib"]))
        os.environ["LD_LIBRARY_PATH"] = ""  # an empty entry is the working directory
        self.assertEqual(self.libraries(), ":".join(others))

    def test_has_those_of_its_own_environment_first(self):
        others = self.install(self.other, "cu13", "cudnn", "nccl")
        own = self.install(self.own, "cu13", "cudnn")
        self.assertEqual(self.libraries(), ":".join(own + others))

    def test_leaves_packages_beside_the_program_to_it(self):
        self.assertIsNone(self.libraries())
        self.install(self.own, "cu13", "cudnn")
        self.assertIsNone(self.libraries())

    def test_has_no_packages_of_cuda_12(self):
        self.install(self.other, "cublas", "cudnn")
        self.assertIsNone(self.libraries())


if __name__ == "__main__":
    unittest.main()
