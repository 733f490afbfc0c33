"""Tests of the installed package: the command, `python -m highwater` and `highwater.report`.

scripts/check-wheel runs them in an environment that contains nothing but the wheel.
"""

import gzip
import io
import json
import os
import pathlib
import pickle
import re
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
import warnings

import highwater

CRATES = pathlib.Path(__file__).resolve().parents[2] / "crates"
DATA = CRATES / "traces" / "tests" / "data"
RECORDING = CRATES / "tracking" / "tests" / "data" / "version1.hwm"
SNAPSHOT = DATA / "snapshot-4.pickle"


def run(*arguments, **options):
    return subprocess.run(arguments, capture_output=True, encoding="utf-8", timeout=120, **options)


def figures_of_command(*arguments):
    done = run(highwater.find_command(), "report", "--json", *map(str, arguments))
    return json.loads(done.stdout)


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

        # Ranks of these files are not stated.
        ignored = warnings.catch_warnings()
        ignored.__enter__()
        self.addCleanup(ignored.__exit__, None, None, None)
        warnings.simplefilter("ignore", highwater.HighwaterWarning)

    def error(self, *arguments, **options):
        """Returns the error of a report."""
        with self.assertRaises(highwater.HighwaterError) as raised:
            highwater.report(*arguments, **options)
        return raised.exception


class Command(Case):
    def test_it_lies_beside_the_package(self):
        command = pathlib.Path(highwater.find_command())
        # Without the resolution of links: the interpreter of an environment is one.
        self.assertEqual(command.parent, pathlib.Path(sys.executable).absolute().parent)

    def test_versions_are_equal(self):
        self.assertEqual(run(highwater.find_command(), "--version").stdout, f"highwater {highwater.__version__}\n")

    def test_a_missing_command_is_an_error(self):
        with unittest.mock.patch("highwater._script_folders", lambda: iter([str(self.folder)])):
            error = self.error(SNAPSHOT)
        self.assertIn(str(self.folder), str(error))
        self.assertIsNone(error.exit_code)

    def test_a_command_on_path_is_not_taken(self):
        other = self.folder / "highwater"
        other.write_text("#!/bin/sh\nexit 7\n")
        other.chmod(0o755)
        with unittest.mock.patch.dict(os.environ, PATH=f"{self.folder}{os.pathsep}{os.environ['PATH']}"):
            self.assertNotEqual(highwater.find_command(), str(other))
            self.assertIn("peak", highwater.report(SNAPSHOT))


class Module(Case):
    def run_module(self, *arguments, **options):
        return run(sys.executable, "-m", "highwater", *arguments, **options)

    def test_output_and_exit_code_are_those_of_the_command(self):
        for arguments in (
            ["--version"],
            ["report", str(SNAPSHOT)],
            ["report", "--json", str(SNAPSHOT)],
            ["report", "missing.pickle"],
            ["report", "a b", "*", "$HOME", "--", "-"],
            [],
        ):
            with self.subTest(arguments):
                expected, found = run(highwater.find_command(), *arguments), self.run_module(*arguments)
                self.assertEqual(found.returncode, expected.returncode)
                self.assertEqual((found.stdout, found.stderr), (expected.stdout, expected.stderr))

    def test_it_reads_standard_input(self):
        with SNAPSHOT.open("rb") as file:
            done = self.run_module("report", "--json", "-", stdin=file)
        self.assertEqual(json.loads(done.stdout)["peak"], highwater.report(SNAPSHOT)["peak"])


class Report(Case):
    def setUp(self):
        super().setUp()
        self.expected = figures_of_command(SNAPSHOT)

    def test_a_path(self):
        self.assertGreater(self.expected["peak"]["bytes"], 0)
        for path in (SNAPSHOT, str(SNAPSHOT)):
            self.assertEqual(highwater.report(path), self.expected)

    def test_bytes_and_files(self):
        contents = SNAPSHOT.read_bytes()
        for snapshot in (contents, bytearray(contents), memoryview(contents), io.BytesIO(contents), gzip.compress(contents)):
            with self.subTest(type(snapshot)):
                self.assertEqual(highwater.report(snapshot)["peak"], self.expected["peak"])
        with SNAPSHOT.open("rb") as file:
            self.assertEqual(highwater.report(file)["peak"], self.expected["peak"])
        # From the position of the file on.
        file = io.BytesIO(b"skipped" + contents)
        file.seek(len(b"skipped"))
        self.assertEqual(highwater.report(file)["peak"], self.expected["peak"])

    def test_values_of_pytorch(self):
        snapshot = pickle.loads(SNAPSHOT.read_bytes())
        self.assertEqual(highwater.report(snapshot)["peak"], self.expected["peak"])
        segments = DATA / "list-of-segments.pickle"
        found = highwater.report(pickle.loads(segments.read_bytes()))
        self.assertEqual(found["peak"], highwater.report(segments)["peak"])

    def test_ranks(self):
        ranks = [SNAPSHOT, DATA / "snapshot-5.pickle"]
        expected = figures_of_command(*ranks)
        self.assertEqual(highwater.report(ranks), expected)
        self.assertEqual(highwater.report(iter(ranks)), expected)
        self.assertEqual(len(expected["ranks"]), 2)

    def test_options(self):
        both = DATA / "two-devices.pickle"
        for device in (0, 1):
            self.assertEqual(highwater.report(both, device=device), figures_of_command(both, "--device", device))
        self.assertIn("device", str(self.error(both)))
        self.assertEqual(highwater.report(SNAPSHOT, top=3, wide=True, by="place", device=None), self.expected)
        self.assertIn("--max-events", str(self.error(SNAPSHOT, max_events=1)))

    def test_names_are_not_options(self):
        for name in ("-", "--json", "a b; exit 3 $(exit 4)", "snäpshot"):
            (self.folder / name).write_bytes(SNAPSHOT.read_bytes())
            program = "import highwater, sys; print(highwater.report(sys.argv[1])['peak']['bytes'])"
            done = run(sys.executable, "-X", "utf8", "-c", program, name, cwd=self.folder, stdin=subprocess.DEVNULL)
            self.assertEqual(done.stdout, f"{self.expected['peak']['bytes']}\n", done.stderr)


class Errors(Case):
    def test_a_missing_file(self):
        path = self.folder / "missing.pickle"
        error = self.error(path)
        self.assertEqual(error.exit_code, 2)
        self.assertTrue(str(error).startswith(f"{path}: "), error)

    def test_truncated_snapshots(self):
        contents = SNAPSHOT.read_bytes()
        path = self.folder / "truncated.pickle"
        for length in (1, 100, len(contents) // 2, len(contents) - 1):
            with self.subTest(length):
                path.write_bytes(contents[:length])
                for snapshot in (path, contents[:length]):
                    error = self.error(snapshot)
                    self.assertEqual(error.exit_code, 2)
                    self.assertRegex(str(error), "truncated.pickle: |standard input: ")
                    self.assertIsNone(error.report)

    def test_invalid_options(self):
        error = self.error(SNAPSHOT, max_evens=3)
        self.assertEqual(error.exit_code, 2)
        self.assertTrue(str(error).startswith("unexpected argument '--max-evens'"), error)
        self.assertIn("--max-events", str(error))
        self.assertNotIn("Usage", str(error))
        self.assertIn("--json", str(self.error(SNAPSHOT, html="page.html")))
        self.assertIn("no figures", str(self.error(SNAPSHOT, help=True)))

    def test_an_unreadable_rank(self):
        error = self.error([SNAPSHOT, self.folder / "missing.pickle"])
        self.assertEqual(error.exit_code, 1)
        self.assertIn("missing.pickle: ", str(error))
        self.assertEqual(len(error.report["ranks"]), 1)

    def test_a_command_that_reads_no_more(self):
        contents = b"\x80\x04no pickle" + bytes(50 << 20)
        self.assertEqual(self.error(contents).exit_code, 2)
        snapshot = {"segments": [], "padding": [bytes(1 << 20)] * 10}
        self.assertEqual(self.error(snapshot, max_input="64KiB").exit_code, 2)

    def test_values_that_are_no_snapshots(self):
        for value in (None, 3, [3], [SNAPSHOT, b""], io.StringIO("text")):
            with self.subTest(value), self.assertRaises(TypeError):
                highwater.report(value)
        with self.assertRaises(ValueError):
            highwater.report([])
        with self.assertRaises((AttributeError, pickle.PicklingError)):
            highwater.report({"segments": lambda: None})

    def test_errors_of_the_caller_end_the_command(self):
        class File:
            def read(self, size):
                raise KeyboardInterrupt

        started = []
        popen = subprocess.Popen

        def start(*arguments, **options):
            started.append(popen(*arguments, **options))
            return started[-1]

        with unittest.mock.patch("subprocess.Popen", start), self.assertRaises(KeyboardInterrupt):
            highwater.report(File())
        self.assertIsNotNone(started[0].returncode)

    def test_remarks_are_warnings(self):
        # A recording whose end is missing.
        path = self.folder / "cut.hwm"
        path.write_bytes(RECORDING.read_bytes()[:-10])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            highwater.report(path)
        self.assertEqual([warning.category for warning in caught], [highwater.HighwaterWarning])
        self.assertIn("cut.hwm: read up to byte", str(caught[0].message))
        self.assertEqual(caught[0].filename, __file__)

    def test_errors_can_be_pickled(self):
        error = pickle.loads(pickle.dumps(highwater.HighwaterError("text", 2)))
        self.assertEqual((str(error), error.exit_code, error.report), ("text", 2, None))


class Documentation(unittest.TestCase):
    def test_the_readme_names_the_functions(self):
        readme = pathlib.Path(__file__).resolve().parents[1].joinpath("README.md").read_text("utf-8")
        for name in re.findall(r"highwater\.(\w+)\(", readme):
            self.assertTrue(hasattr(highwater, name), name)

    def test_types_are_part_of_the_package(self):
        self.assertTrue(pathlib.Path(highwater.__file__).with_name("py.typed").is_file())


if __name__ == "__main__":
    unittest.main()
