"""Crashes at every moment of one run: what is durable is copied at each of them, and only the recovery runs again."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from statefx.testing.steps import Crash, DurableSteps

_RANDOM = re.compile(r"[0-9a-f]{6,}|(?<=unfinished-).*")
"""Tokens, which differ between the file names of two runs."""

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class CrashPoint:
    """A state of everything durable, as a crash leaves it.

    Attributes
    ----------
    moments : tuple of str
        The moments of the run that leave it, in order: nothing durable happens between them.
    cache : Path
        The machine's folder for caches: what is in it is as the crash left it.
    is_rerun : bool
        Whether the run did crash here, and memory of this process is as the crash left it too.
    """

    moments: tuple[str, ...]
    cache: Path
    is_rerun: bool
    _left: Callable[[], frozenset[str]]
    _seen: set[tuple[object, ...]]

    def is_new(self, *reached: object) -> bool:
        """Return whether no crash so far was recovered from with these kinds of files left, and `reached`.

        Otherwise all that follows the recovery was seen before. The caller calls it after the recovery and a look at
        what it has come to, such as the last transaction, and goes on to the end if it is True.
        """
        outcome = (*reached, self._left())
        is_new = outcome not in self._seen
        self._seen.add(outcome)
        return is_new or self.is_rerun

    def __str__(self) -> str:
        return f"{'crash' if self.is_rerun else 'copy'} at {' / '.join(self.moments)}"


def crashes(
    root: Path,
    life: Callable[[DurableSteps], object],
    *kept: Any,
    cache: str = "cache",
    reruns: bool = True,
    every: int = 1,
) -> Iterator[CrashPoint]:
    """Run `life` once, and yield with `root` as a crash at each of its moments would have left it.

    The caller runs the recovery, and compares. At the first, the middle and the last moment `life` is also run
    again and does crash; it must then leave the files of which there were copies.

    Parameters
    ----------
    root : Path
        A folder with all that is durable; copies of it are held in memory.
    life : callable
        Does all from the start to the end, with the steps that it is given; `root` is then as it was before.
    *kept : objects
        Other things that outlive a crash, such as a list that stands for a server: a list, dict or set, or an object
        whose attributes can be copied deeply. Their content is put back in place.
    cache : str
        The folder below `root` in which the machine of `life` keeps caches, if it keeps any there.
    reruns : bool
        Whether there are real crashes too.
    every : int
        How many states to go on by, from one to the next.
    """

    def point(image: _Image, cache: Path, is_rerun: bool = False) -> CrashPoint:
        left = partial(_kinds_left, root, cache.name)
        found = CrashPoint(tuple(image.moments), cache, is_rerun, left, seen)
        print(found)  # noqa: T201 - pytest shows the last one where the caller's test fails
        return found

    seen = set[tuple[object, ...]]()
    before = _Image.of(root, kept)
    steps, images = DurableSteps(), list[_Image]()

    def take(moment: str) -> None:
        image = _Image.of(root, kept, images[-1] if images else None)
        if not images or image != images[-1]:
            images.append(image)
            image.first = len(steps.passed)
        images[-1].moments.append(moment)

    steps.each_moment = take
    life(steps)
    for number, image in list(enumerate(images))[::every]:
        image.restore(root, kept)
        moved = root / f"{cache}-{number}"  # a process remembers what it had in the other one
        if (root / cache).exists():
            (root / cache).rename(moved)
        yield point(image, moved)
    for number in sorted({0, len(images) // 2, len(images) - 1} if reruns else ()):
        before.restore(root, kept)
        again, image = DurableSteps(images[number].first), images[number]
        with contextlib.suppress(Crash):
            life(again)
        assert again.crashed == image.moments[0], "the run takes other steps when it is run again"
        left = _Image.of(root, kept)
        names, expected = left.names(cache), image.names(cache)
        assert names == expected, f"a crash {again.crashed} leaves other files than there were"
        yield point(image, root / cache, is_rerun=True)


def _kinds_left(root: Path, cache: str) -> frozenset[str]:
    paths = (path for path, is_folder in _walk(root) if not is_folder)
    return frozenset(_NUMBER.sub("0", name) for name in _names(paths, cache))


def _walk(root: Path) -> Iterator[tuple[str, bool]]:
    """Yield what is below a folder, by its path from there, and whether it is a folder."""
    for folder, folders, names in os.walk(root):
        above = folder[len(str(root)) + 1 :]  # os.path.relpath takes longer than to read a small file
        for name in (*folders, *names):
            yield (f"{above}/{name}" if above else name), name in folders


def _names(paths: Iterable[str], cache: str) -> list[str]:
    """Return the names of files, but for the machine's caches, without what is random in them."""
    return sorted(_RANDOM.sub("*", path) for path in paths if path.split("/")[0] != cache)


@dataclass
class _Image:
    """Durable things at a moment: files by their path with content and time, folders with None, and others."""

    files: dict[str, tuple[bytes, int] | None]
    kept: list[Any]
    moments: list[str] = field(default_factory=list, compare=False)
    first: int = field(default=0, compare=False)
    """The number of the first moment, as `DurableSteps` counts."""

    @classmethod
    def of(cls, root: Path, kept: tuple[Any, ...], last: _Image | None = None) -> _Image:
        found: dict[str, tuple[bytes, int] | None] = {}
        for path, is_folder in _walk(root):
            if is_folder:
                found[path] = None
                continue
            with contextlib.suppress(FileNotFoundError), open(f"{root}/{path}", "rb") as file:
                found[path] = file.read(), os.fstat(file.fileno()).st_mtime_ns
        if last is not None:
            found = {path: last.files[path] if last.files.get(path, ()) == it else it for path, it in found.items()}
        return cls(found, [deepcopy(_content(each)) for each in kept])

    def restore(self, root: Path, kept: tuple[Any, ...]) -> None:
        for entry in os.scandir(root):
            shutil.rmtree(entry.path) if entry.is_dir() else os.unlink(entry.path)
        for path, found in self.files.items():
            full = os.path.join(root, path)
            if found is None:
                os.makedirs(full, exist_ok=True)
                continue
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "xb") as file:
                file.write(found[0])
            os.utime(full, ns=(found[1], found[1]))
        for each, content in zip(kept, deepcopy(self.kept), strict=True):
            now = _content(each)
            now.clear()
            now.extend(content) if isinstance(now, list) else now.update(content)

    def names(self, cache: str) -> list[str]:
        return _names((path for path, found in self.files.items() if found is not None), cache)


def _content(kept: Any) -> Any:
    return kept if isinstance(kept, list | dict | set) else vars(kept)
