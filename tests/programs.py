"""Runs programs, one after the other, in one process with one JVM: pages of the documentation, and examples.

A process for each of them would start a JVM, Spark and its workers: ten seconds of processor time, where the program
itself takes one.
"""

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import traceback
import types
from pathlib import Path
from typing import Any, Self


class Programs:
    """The process; it starts with the first program, in a folder of its own that each program finds empty.

    A program is the main module, and has its own ``sys.argv``. What it prints is kept; what workers print is not.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = folder.with_suffix(".log").open("w+")
        self._process: subprocess.Popen[str] | None = None

    def run(self, script: Path, *arguments: object) -> dict[str, Any]:
        """Return what became of a program.

        Returns
        -------
        dict
            ``failure``: its traceback, or None, also where it exits with 0; ``stdout`` and ``stderr``; ``left``: the
            names of what it has left where it was run.
        """
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(self._folder)],
                cwd=self._folder,
                env={
                    **os.environ,
                    "PYTHONPATH": str(Path(__file__).parent.parent),
                    "PYSPARK_PYTHON": sys.executable,
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "PYSPARK_SUBMIT_ARGS": "--conf spark.ui.enabled=false pyspark-shell",
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([*map(str, (script, *arguments))]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"{script} has ended the process:\n{Path(self._log.name).read_text()[-6000:]}"
        found: dict[str, Any] = json.loads(line)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None:
            self._process.communicate()  # its input ends
        self._log.close()


def _run(script: Path, arguments: list[str], folder: Path) -> dict[str, Any]:
    module = types.ModuleType("__main__")
    module.__file__ = str(script)
    mine, sys.argv, path = sys.modules["__main__"], [str(script), *arguments], sys.path
    sys.modules["__main__"], sys.path = module, [str(script.parent), *path]
    out, err, failure = io.StringIO(), io.StringIO(), None
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            exec(compile(script.read_text(encoding="utf-8"), script, "exec"), module.__dict__)
    except BaseException as error:  # noqa: BLE001 - SystemExit too is the end of this program alone
        if not isinstance(error, SystemExit) or error.code:
            failure = traceback.format_exc()
    finally:
        sys.modules["__main__"], sys.path = mine, path
    left = sorted(path.name for path in folder.iterdir())
    for path in folder.iterdir():  # the folder itself stays: the JVM's relative paths begin there
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return {"failure": failure, "stdout": out.getvalue(), "stderr": err.getvalue(), "left": left}


def main(folder: Path) -> None:
    """Run what the input names, and answer with a line of JSON each."""
    answers = sys.stdout
    sys.stdout = sys.stderr
    for line in sys.stdin:
        script, *arguments = json.loads(line)
        answers.write(json.dumps(_run(Path(script), arguments, folder)) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
