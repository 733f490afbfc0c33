"""Shows where the memory of a PyTorch program went.

The package contains the command ``highwater`` and calls it. It has no dependencies and does not import PyTorch.

    import highwater, torch

    torch.cuda.memory._record_memory_history()
    ...
    figures = highwater.report(torch.cuda.memory._snapshot())
    print(figures["peak"]["bytes"])

``python -m highwater`` runs the command: ``python -m highwater report snapshot.pickle``.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import pickle
import subprocess
import sysconfig
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, Union, cast

__all__ = ["HighwaterError", "HighwaterWarning", "Option", "Snapshot", "find_command", "report"]

try:
    #: The version of the package and of its command.
    __version__: str = importlib.metadata.version("highwater")
except importlib.metadata.PackageNotFoundError:
    # A source tree that is not installed.
    __version__ = "0+unknown"

_Path = Union[str, "os.PathLike[str]"]

#: A snapshot: a path, an open binary file, the contents of a file, or the value of a function of PyTorch; several paths are the
#: ranks of one run.
Snapshot = Union[_Path, bytes, bytearray, memoryview, IO[bytes], dict[str, Any], list[dict[str, Any]], Iterable[_Path]]

#: The value of an option of the command.
Option = Union[None, bool, int, float, _Path]

# Every reader of pickles in the command supports this protocol, and so does Python 3.9.
_PROTOCOL = 4


class HighwaterError(RuntimeError):
    """The command failed, or is not installed.

    >>> try:
    ...     highwater.report("missing.pickle")
    ... except highwater.HighwaterError as error:
    ...     print(error.exit_code, error)
    2 missing.pickle: No such file or directory (os error 2)
    """

    #: The message of the command.
    message: str
    #: The exit code of the command: 2 for an invalid option or an unreadable file, 1 for other failures, -N after signal N.
    #: ``None`` if the command did not run.
    exit_code: int | None
    #: The figures that the command printed before it failed: those of the other ranks if one rank is unreadable.
    report: dict[str, Any] | None

    def __init__(
        self, message: str, exit_code: int | None = None, report: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message, exit_code, report)
        self.message, self.exit_code, self.report = message, exit_code, report

    def __str__(self) -> str:
        return self.message


class HighwaterWarning(UserWarning):
    """A remark of the command on a report, such as where a damaged recording ends."""


def report(snapshot: Snapshot, **options: Option) -> dict[str, Any]:
    """Returns the figures of ``highwater report --json`` as a dictionary.

    ``snapshot`` is one of:

    - the path of a snapshot, of a recording (.hwm) or of another file that the command opens, compressed with gzip or not
    - an open binary file, which is read to its end, or the contents of a file as bytes
    - the dictionary of ``torch.cuda.memory._snapshot()``, or the list of ``torch.cuda.memory_snapshot()``
    - several paths: the ranks of one run, which are compared

    Keywords are options of the command with ``_`` for ``-``: ``device=1`` is ``--device=1``. ``True`` stands for an option without
    a value; options that are ``None`` or ``False`` are omitted. ``highwater report --help`` lists them. Useful ones are ``device``,
    ``max_events``, ``max_input="8GiB"`` and ``max_memory="4GiB"``. ``top``, ``by`` and ``wide`` only shorten text: the figures are
    always complete.

    Raises :class:`HighwaterError` with the message and the exit code of the command. Remarks on a report are
    :class:`HighwaterWarning`.

    >>> figures = highwater.report("snapshot.pickle", device=0)
    >>> figures["peak"]["bytes"]
    1001700
    >>> ranks = highwater.report(["rank-0.pickle", "rank-1.pickle"])
    """
    paths, write = _inputs(snapshot)
    # The names of files follow `--`, so that they may begin with `-`.
    arguments = [find_command(), "report", "--json", *_arguments(options), "--", *paths]
    code, stdout, stderr = _run(arguments, write)
    figures: dict[str, Any] | None = None
    try:
        figures = json.loads(stdout)
    except ValueError:
        # The command printed nothing, was interrupted, or printed text: `help=True`.
        pass
    if code != 0:
        raise HighwaterError(_message(code, stderr), code, figures)
    if figures is None:
        raise HighwaterError("the command printed no figures", code)
    for line in filter(None, stderr.splitlines()):
        warnings.warn(_without_prefix(line), HighwaterWarning, stacklevel=2)
    return figures


def find_command() -> str:
    """Returns the path of the command of this package, on PATH or not.

    >>> subprocess.run([highwater.find_command(), "report", "--html", "page.html", "snapshot.pickle"], check=True)
    """
    name = "highwater.exe" if os.name == "nt" else "highwater"
    folders = list(_script_folders())
    for folder in folders:
        command = os.path.join(folder, name)
        if os.path.isfile(command):
            return command
    raise HighwaterError(f"the command highwater is missing in {', '.join(folders)}: install the wheel")


def _script_folders() -> Iterator[str]:
    """Yields the folders where installers put the command, starting with those of this copy of the package."""
    packages = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if os.path.basename(packages) in ("site-packages", "dist-packages"):
        # PREFIX/lib/python3.x/site-packages, or PREFIX\Lib\site-packages on Windows.
        to_scripts = ("..", "..", "Scripts") if os.name == "nt" else ("..", "..", "..", "bin")
        yield os.path.normpath(os.path.join(packages, *to_scripts))
    yield sysconfig.get_path("scripts")
    yield sysconfig.get_path("scripts", f"{os.name}_user")
    # pip install --target
    yield os.path.join(packages, "bin")


def _inputs(snapshot: Snapshot) -> tuple[list[str], Callable[[_Input], None] | None]:
    """Returns the inputs of the command, and the function that writes its standard input, if it reads that."""
    if isinstance(snapshot, (bytes, bytearray, memoryview)):
        contents = snapshot
        return ["-"], lambda target: target.write(contents)
    if isinstance(snapshot, (str, os.PathLike)):
        return [_path(snapshot)], None
    if isinstance(snapshot, dict):
        return ["-"], lambda target: pickle.dump(snapshot, target, _PROTOCOL)
    if hasattr(snapshot, "read"):
        file = cast("IO[bytes]", snapshot)
        return ["-"], lambda target: _copy(file, target)
    try:
        values: list[Any] = list(snapshot)
    except TypeError:
        raise TypeError(f"expected a path, a binary file, bytes or a snapshot, not {type(snapshot).__name__}") from None
    if not values:
        raise ValueError("expected at least one path")
    if all(isinstance(value, dict) for value in values):
        # The segments of `torch.cuda.memory_snapshot()`.
        return ["-"], lambda target: pickle.dump(values, target, _PROTOCOL)
    for value in values:
        if not isinstance(value, (str, os.PathLike)):
            raise TypeError(f"ranks are paths, not {type(value).__name__}")
    return [_path(value) for value in values], None


def _path(path: _Path) -> str:
    """Returns a path as an argument. A file named `-` is not standard input."""
    text = os.fsdecode(path)
    return os.path.join(os.curdir, text) if text == "-" else text


def _copy(file: IO[bytes], target: _Input) -> None:
    while True:
        chunk = file.read(1 << 20)
        if isinstance(chunk, str):
            raise TypeError("expected a file in binary mode: open(path, 'rb')")
        if not chunk:
            return
        target.write(chunk)


def _arguments(options: dict[str, Option]) -> Iterator[str]:
    """Yields the options of the command."""
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if value is True:
            yield option
        elif isinstance(value, (str, os.PathLike)):
            yield f"{option}={os.fsdecode(value)}"
        elif value is not None and value is not False:
            yield f"{option}={value}"


class _Closed(Exception):
    """The command has ended and reads no more."""


class _Input:
    """Standard input of a command."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe

    def write(self, data: bytes | bytearray | memoryview) -> None:
        rest = memoryview(data).cast("B")
        try:
            while rest:
                rest = rest[self._pipe.write(rest) :]
        except OSError as error:
            raise _Closed from error


def _run(arguments: list[str], write: Callable[[_Input], None] | None) -> tuple[int, bytes, str]:
    """Runs a command without a shell. Returns its exit code, output and messages."""
    stdin = subprocess.PIPE if write else subprocess.DEVNULL
    # The outputs are files, because the command could wait for a reader of full pipes while this thread writes its input.
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        with subprocess.Popen(arguments, bufsize=0, stdin=stdin, stdout=stdout, stderr=stderr) as process:
            try:
                if write and process.stdin:
                    # A command that ends early says why in its message.
                    with process.stdin, contextlib.suppress(_Closed):
                        write(_Input(process.stdin))
                process.wait()
            except BaseException:
                process.kill()
                process.wait()
                raise
        stdout.seek(0)
        stderr.seek(0)
        return process.returncode, stdout.read(), stderr.read().decode("utf-8", "replace")


def _without_prefix(line: str) -> str:
    for prefix in ("highwater: ", "error: "):
        if line.startswith(prefix):
            return line[len(prefix) :]
    return line


def _message(code: int, stderr: str) -> str:
    """Returns the message of a command that failed, without its prefix and its advice on usage."""
    text = stderr.split("\n\nUsage:")[0].strip()
    if text:
        return "\n".join(map(_without_prefix, text.splitlines()))
    if code < 0:
        return f"signal {-code} ended the command"
    return f"the command failed with exit code {code}"
