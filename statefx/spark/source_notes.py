"""Notes of a stream's sources for themselves, and where the transaction log keeps them.

A file source keeps lists of the files that it has read, Kafka the offsets at which it began, a rate source the time.
None of this can be had from the offsets of a batch, and without it a batch can't be run again. Whatever lies below
``sources/`` is taken as it is, so that any source is kept whole; only of file sources more is known, to look at nothing
twice: there may be many thousands of lists.

Which compacted lists of files Spark looks for in the folder of a file source.

Spark's ``CompactibleFileStreamLog`` names the list of every n-th batch ``<number>.compact``: it holds all before it.
Spark writes n down nowhere. Each start finds it again, from the names of the compacted lists and the setting
``spark.sql.streaming.fileSource.log.compactInterval``: it is the distance of the newest two. Of one alone Spark derives
n, not always that of the last run: of ``19.compact``, with 10 as the setting, it derives 20. The transaction log gives
up all compacted lists but one where one is enough, and the setting may be changed, so two starts may find different n.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from uuid import uuid4

from statefx.errors import RESTORE_OR_REPAIR, CheckpointError, StateCorruptedError
from statefx.log.log import TransactionLog
from statefx.protocol.identity import FileRef
from statefx.protocol.records import SourceNotes
from statefx.storage import Storage

logger = logging.getLogger("statefx")


PREFIX = "sources/"
"""Of the names of files that were put aside."""

INLINE_BYTES_MAX = 64 << 10
"""Notes that the log itself may hold. Each CHECKPOINT has all of them, once in some fifty transactions: up to here that
is less than a file, with its fsync, would cost."""

ALIKE_MAX = 4
"""So many files of like size may be aside before the next takes them in: their number grows with the logarithm of what
they hold, and nothing is written again more often than that."""

_LISTED = re.compile(r'\{"logOffset":(\d+)\}')
"""The offset of a file source: the number of a list of files in its own log, ``sources/<source>/<number>``."""

_MARK = "\0v"
"""How Kafka's source, and sources modelled on it, begin the file that says at which offsets the first batch begins."""


def lists_of(offsets: str, sources: Sequence[int]) -> dict[str, int]:
    """Return, for each file source of a batch with these offsets, the number of the last list of files it reads.

    Spark writes offsets as version, metadata, and a line for each place where the query reads a stream; `sources` are
    the numbers of the sources of these lines (`internals.sources_of`).
    """
    found = {source: _LISTED.fullmatch(line) for source, line in zip(sources, offsets.splitlines()[2:], strict=False)}
    return {str(source): int(each[1]) for source, each in found.items() if each}


def last_read(notes: SourceNotes, storage: Storage, sources: Iterable[str]) -> dict[str, str | None]:
    """Return, for each file source, a file of the newest list that the log has of it, or "" if that list has none.

    None: the log has no list of that source. Sources are left out of which nothing can be told, since a file is
    missing; who needs it says so.
    """
    left, found = set(sources), dict[str, str | None]()

    def look(files: Mapping[str, str | None]) -> None:
        newest: dict[str, tuple[int, str]] = {}
        for path, text in files.items():
            source, name = os.path.split(path)
            if source in left and text is not None and _number(name) < sys.maxsize:
                newest[source] = max(newest.get(source, (-1, "")), (_number(name), text))
        for source, (_, text) in newest.items():
            *_, last = text.splitlines()
            found[source] = str(json.loads(last)["path"]) if last.startswith("{") else ""
        left.difference_update(newest)

    look(notes.files)
    for ref in reversed(notes.aside):
        if not left:
            break
        try:
            look(json.loads(storage.read(ref.name))["files"])
        except (OSError, ValueError):
            return found
    return found | dict.fromkeys(left)


@dataclass(frozen=True, slots=True)
class _Aside:
    """A file next to the log, and the paths whose content it has."""

    ref: FileRef
    paths: Set[str]


class SourceFiles:
    """The folder ``sources/`` of one run, and the part of it that the log has."""

    def __init__(self, folder: str, log: TransactionLog, sources: Sequence[int]) -> None:
        self._sources = sources
        self._folder = folder
        self._log = log
        self._storage = log.storage
        self._generation = log.state.generation
        self._seen: dict[str, dict[str, tuple[int, int]]] = {}
        """Folder -> name -> inode and size of what the log has, or will have with the next record."""
        self._newest: dict[str, int] = {}
        """Folder of a file source -> the newest list that the log has; of others it is not asked for."""
        self._compacted: dict[str, set[int]] = {}
        """Folder of a file source -> its lists that hold all before them, but for those that were given up."""
        self._first: dict[str, int] = {}
        """Folder of a file source -> the one of these before which nothing is kept."""
        self._made: dict[str, str] = {}
        """Compacted lists that this driver has made itself: path -> content, until they are given to a record."""
        self._begun: dict[str, str] = {}
        """Path -> content of the files that are written once, and say where a source begins."""
        self._aside: list[_Aside] = []
        self._replaced: list[str] = []

    # ---- from the log to the folder

    def restore(self, notes: SourceNotes) -> None:
        """Write all that the log has of it, and delete files of older drivers that no record names.

        StateCorruptedError: a file that the log names is missing or damaged. FencedError: a newer generation has taken
        over.
        """
        files: dict[str, str | None] = {}
        for ref in notes.aside:
            held = self._read(ref)
            self._aside.append(_Aside(ref, frozenset(path for path, text in held.items() if text is not None)))
            files |= held
        for path, text in (files | dict(notes.files)).items():
            if text is not None:
                self._write(path, text)
        # Rule 4.3: one of this generation or of a newer one may be named by a record that is just being written.
        found = [each.name for each in self._storage.list(PREFIX)]
        self._delete_unnamed([name for name in found if _generation(name) < self._generation])

    def compact(self, sources: Iterable[str], setting: int) -> None:
        """Write the compacted lists of files that Spark will look for and that no driver has written.

        Without them Spark's query could not be started: its interval, `setting`, may be another one than that of the
        last run.
        """
        for source in sources:
            compacted = self._compacted.get(source, set())
            last = max(compacted, default=-1)
            held = [f"{source}/{last}.compact"] if compacted else []
            for number in missing_compacted(compacted, self._newest.get(source, -1), setting):
                held += [f"{source}/{each}" for each in range(last + 1, number + 1)]
                whole = united([self._text(path) for path in held])
                if whole is None:
                    break  # Spark refuses, and says which one it looks for
                last, held = number, [f"{source}/{number}.compact"]
                self._write(held[0], whole)
                # The log gets it too. With those alone that Spark writes after it, two that are left there could be
                # several intervals apart, and the next start would take that distance for the interval.
                self._made[held[0]] = whole

    def _write(self, path: str, text: str) -> None:
        whole = os.path.join(self._folder, path)
        os.makedirs(os.path.dirname(whole), exist_ok=True)
        with open(whole, "wb") as file:
            file.write(text.encode("utf-8", "surrogateescape"))
        folder, name = os.path.split(path)
        self._mark_seen(folder, name)
        self._keep_beginning(path, text)
        if _number(name) < sys.maxsize:
            self._newest[folder] = max(self._newest.get(folder, -1), _number(name))

    def _read(self, ref: FileRef) -> dict[str, str | None]:
        where = f"{self._storage.url}/{ref.name}"
        try:
            data = self._storage.read(ref.name)
        except FileNotFoundError:
            problem = "is missing"
        else:
            if ref.fits(data):
                files: dict[str, str | None] = json.loads(data)["files"]
                return files
            problem = "is damaged: its checksum is not the one in the log"
        remedy = RESTORE_OR_REPAIR
        raise StateCorruptedError(
            f"{where} {problem}. It says which input has been read: without it rows would come again. {remedy}.",
            path=where,
            remedy=remedy,
        )

    # ---- from the folder to the log

    def beginnings(self, known: SourceNotes) -> SourceNotes:
        """Return the new notes, except the lists of file sources, which come with the batch that reads them.

        `known` is what the log has now. What is returned must be its next notes; the same holds for `of_batch`.
        """
        self._restore_beginnings()
        return self._recorded(known, dict(self._changes("", passed_over=self._newest)))

    def of_batch(self, known: SourceNotes, offsets: str, before: str) -> SourceNotes:
        """Return the new notes, for the record with which a batch begins.

        `before` are the offsets of the oldest batch that Spark may still ask for, empty if there is none.
        CheckpointError: a list of files that the batch reads is not there, or the notes can't be written. FencedError:
        a newer generation has taken over.
        """
        self._restore_beginnings()
        lists = lists_of(offsets, self._sources)
        numbered = {source: self._newest[source] for source in lists if source in self._newest}
        new = dict(self._changes("", passed_over=numbered)) | self._made
        self._made = {}
        for source, last in numbered.items():
            for number in range(last + 1, lists[source] + 1):
                new |= self._take(source, (str(number), f"{number}.compact"))
        for source, number in lists.items():
            self._newest[source] = max(number, self._newest.get(source, -1))
            if not {str(number), f"{number}.compact"} & self._seen.get(source, {}).keys():
                raise CheckpointError(
                    f"{os.path.join(self._folder, source, str(number))} is missing: the list of the files that the "
                    "next transaction reads. Who deletes in the folder of a query that is at work? Submit again",
                    path=os.path.join(self._folder, source, str(number)),
                )
        for source, number in lists_of(before, self._sources).items():
            new |= dict.fromkeys(self._superseded(source, number))
        return self._recorded(known, new)

    def _take(self, folder: str, names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        """Yield path and content of those files that are there."""
        for name in names:
            path = f"{folder}/{name}" if folder else name
            text = self._text(path)
            if text is not None:
                self._mark_seen(folder, name)
                self._keep_beginning(path, text)
                yield path, text

    def _keep_beginning(self, path: str, text: str) -> None:
        if text.startswith(_MARK) and os.path.basename(path) == "0":
            self._begun[path] = text

    def _restore_beginnings(self) -> None:
        """Write again where a source begins, if that file is missing or is not what the source wrote.

        Without the file, the source would begin at what ``startingOffsets`` means at that moment, without a word: rows
        of a first batch that is run again would be passed over, or rows before it read. So no such loss gets into the
        log either.
        """
        for path, text in self._begun.items():
            folder, name = os.path.split(path)
            try:
                found = _signature(os.stat(os.path.join(self._folder, path)))
            except FileNotFoundError:
                found = None
            if found != self._seen[folder].get(name):
                logger.warning("%s was deleted or changed; it is written again", os.path.join(self._folder, path))
                self._write(path, text)

    def _mark_seen(self, folder: str, name: str) -> None:
        self._seen.setdefault(folder, {})[name] = _signature(os.stat(os.path.join(self._folder, folder, name)))
        if name.endswith(".compact"):
            self._compacted.setdefault(folder, set()).add(_number(name))

    def _changes(self, folder: str, passed_over: Mapping[str, int]) -> Iterator[tuple[str, str | None]]:
        """Yield what has changed in a folder and below, since the last look: path and content, None if it has gone."""
        try:
            entries = list(os.scandir(os.path.join(self._folder, folder)))
        except FileNotFoundError:
            return
        seen, there = self._seen.setdefault(folder, {}), set()
        for entry in entries:
            path = os.path.join(folder, entry.name)
            if entry.is_dir(follow_symlinks=False):
                if path not in passed_over:
                    yield from self._changes(path, passed_over)
            elif not _is_transient(entry.name):
                there.add(entry.name)
                if seen.get(entry.name) != _signature(entry.stat()):
                    yield from self._take(folder, (entry.name,))
        for name in seen.keys() - there:
            del seen[name]
            if os.path.join(folder, name) not in self._begun:  # else the next call restores it
                yield os.path.join(folder, name), None

    def _superseded(self, source: str, number: int) -> Iterator[str]:
        """Yield the lists of a file source that are needed no more, because a compacted one holds what they hold.

        Spark reads the newest compacted list and those after it, and again those of the last batches, from `number` on.
        """
        compacted = self._compacted.get(source, set())
        first = max((each for each in compacted if each <= number), default=None)
        if first is not None and first != self._first.get(source):
            self._first[source] = first
            compacted -= {each for each in compacted if each < first}
            seen = self._seen[source]
            for name in [name for name in seen if _number(name) < first]:
                del seen[name]
                yield f"{source}/{name}"

    def _recorded(self, known: SourceNotes, new: Mapping[str, str | None]) -> SourceNotes:
        """Return the notes of a record; large ones go to a file first, durable before the record names it."""
        self._replaced = self._delete_unnamed(self._replaced)
        inline = {**known.files, **new}
        size = sum(len(text) for text in inline.values() if text is not None)
        if size <= INLINE_BYTES_MAX:  # rule 3.8: durable with PREPARING itself, or with NOTED
            return SourceNotes(new)
        kept, merged = self._files_to_merge(size)
        texts = {path: inline.get(path) or self._text(path) for path in inline.keys() | merged if self._is_live(path)}
        gone = {path for each in kept for path in each.paths if not self._is_live(path)}
        files = dict.fromkeys(gone) | {path: text for path, text in texts.items() if text is not None}
        data = json.dumps({"files": files}, separators=(",", ":")).encode("ascii")
        ref = FileRef.of(f"{PREFIX}{self._generation:010d}-{uuid4().hex}", data)
        # Durable before the record that names it: a record whose file is missing would be a damaged checkpoint.
        try:
            self._storage.put(ref.name, data)
        except OSError as error:
            raise CheckpointError(
                f"what the sources of the stream have written down can't be kept in {self._storage.url}: {error}",
                path=f"{self._storage.url}/{ref.name}",
            ) from error
        self._aside = [*kept, _Aside(ref, texts.keys())]
        return SourceNotes({}, tuple(each.ref for each in self._aside))

    def _files_to_merge(self, size: int) -> tuple[list[_Aside], set[str]]:
        """Return the files that stay when one of this size is added, and the paths of those that it takes in."""
        live = [each for each in self._aside if any(map(self._is_live, each.paths))]
        number = 0
        while number < len(live) and live[-1 - number].ref.size_bytes <= 2 * size:
            number += 1
        kept = live[: len(live) - number] if number >= ALIKE_MAX else live
        self._replaced += [each.ref.name for each in self._aside if each not in kept]
        return kept, {path for each in live[len(kept) :] for path in each.paths}

    def _delete_unnamed(self, names: Sequence[str]) -> list[str]:
        """Delete those of the files that the log does not name, and return the others.

        One that can't be deleted is, by the next start. FencedError: a newer generation has taken over; its log may
        name what this driver's does not, and nothing was deleted.
        """
        named = self._log.state.notes_files()
        if gone := [name for name in names if name not in named]:
            with contextlib.suppress(OSError):
                self._log.check_newest()  # rule 4.3
                self._storage.delete(gone)
        return [name for name in names if name in named]

    def _is_live(self, path: str) -> bool:
        folder, name = os.path.split(path)
        return name in self._seen.get(folder, ())

    def _text(self, path: str) -> str | None:
        if path in self._begun:  # it may have been damaged since it was put back
            return self._begun[path]
        try:
            with open(os.path.join(self._folder, path), "rb") as file:
                return file.read().decode("utf-8", "surrogateescape")  # any bytes come back as they were
        except FileNotFoundError:  # the source itself has deleted it
            return None


def _is_transient(name: str) -> bool:
    """Return whether a file is one of Hadoop's checksums, or is just being written."""
    return name.startswith(".") and name.endswith((".crc", ".tmp"))


def _signature(found: os.stat_result) -> tuple[int, int]:
    """With the inode: Spark replaces files by others, of the same size perhaps."""
    return found.st_ino, found.st_size


def _number(name: str) -> int:
    """Return the number of a list of files; what has none belongs to no list, and is never covered by one."""
    number = name.partition(".")[0]
    return int(number) if number.isdecimal() else sys.maxsize


def _generation(name: str) -> int:
    """Return the generation of a file next to the log."""
    number = name.removeprefix(PREFIX).partition("-")[0]
    return int(number) if number.isdecimal() else 0


SETTING = "spark.sql.streaming.fileSource.log.compactInterval"
DEFAULT = 10
"""Spark's own."""


def missing_compacted(compacted: Set[int], newest: int, setting: int) -> range:
    """Return the numbers of the compacted lists that Spark's start will look for, and that were never written.

    With these too, Spark finds the same interval by their distance. All are later than those that are there; usually
    there are none to return. `newest` is the number of the newest list, compacted or not.
    """
    interval = _interval(compacted, setting)
    last = max(compacted, default=-1)
    if (last + 1) % interval:  # of no history that Spark has written: nothing that is added would make it one
        return range(0)
    return range(last + interval, newest + 1, interval)


def _interval(compacted: Set[int], setting: int) -> int:
    """Return the interval with which Spark's start will read, as ``CompactibleFileStreamLog.compactInterval`` does."""
    if not compacted:
        return setting
    *before, last = sorted(compacted)
    if before:
        return last - before[-1]
    if setting < (last + 1) // 2:
        return next((each for each in range(setting, (last + 1) // 2 + 1) if (last + 1) % each == 0), last + 1)
    return last + 1


def united(lists: Iterable[str | None]) -> str | None:
    """Return the compacted list of these, in their order; None if one is missing, or their formats are not the same."""
    parts = [each.partition("\n") if each is not None else ("", "", "") for each in lists]
    formats = {head for head, _, _ in parts}
    if len(formats) != 1 or "" in formats:
        return None
    return "\n".join([*formats, *(entries for _, _, entries in parts if entries)])
