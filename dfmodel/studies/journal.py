"""An append-only store of records by content key, safe against kill -9, full disks and several writers.

One JSON object per line. A record is written whole by one append under a file lock; a line torn by a crash is skipped
when read and closed off before the next append. All `NAME*.jsonl` of a folder are read, one of them is written, so that
jobs of an array, which may not share locks over a network, write files of their own. The last record of a key wins.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from dfmodel.errors import DfmodelError, InputError

Record = Mapping[str, Any]

#: Errors of an append that say the place is full rather than wrong.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class StoreFullError(DfmodelError):
    """A record could not be written; everything written before it is kept."""

    exit_code = 5


class Journal(MutableMapping[str, Record]):
    """Records of a folder by key. `part` names the file written, `NAME-PART.jsonl` (without it `NAME.jsonl`).

    Raises InputError where the folder cannot be made or read.
    """

    def __init__(self, folder: Path, name: str, part: str = "") -> None:
        self.folder, self._name = folder, name
        self.path = folder / (f"{name}-{part}.jsonl" if part else f"{name}.jsonl")
        self._records: dict[str, Record] = {}
        self._read_to: dict[Path, int] = {}
        #: Lines that a crash left incomplete.
        self.torn = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{folder}: cannot keep results here ({error.strerror}); choose another place") from error
        self.refresh()

    def refresh(self) -> None:
        """Read what others have appended since."""
        for path in sorted(self.folder.glob(f"{self._name}*.jsonl")):
            self._read(path)

    def _read(self, path: Path) -> None:
        start = self._read_to.get(path, 0)
        try:
            if path.stat().st_size <= start:
                return
            with path.open("rb") as file:
                file.seek(start)
                data = file.read()
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror})") from error
        whole = data.rfind(b"\n") + 1
        self._read_to[path] = start + whole
        for line in data[:whole].splitlines():
            if line:
                self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
            key, record = entry["key"], entry["record"]
        except (ValueError, KeyError, TypeError):
            self.torn += 1
            return
        self._records[key] = record

    def __getitem__(self, key: str) -> Record:
        return self._records[key]

    def __setitem__(self, key: str, record: Record) -> None:
        """Append a record. Raises StoreFullError, with the file as it was, where the disk takes no more."""
        line = json.dumps({"key": key, "record": record}, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        try:
            self._append(line)
        except OSError as error:
            what = "the disk is full" if error.errno in _FULL else f"cannot be written ({error.strerror})"
            raise StoreFullError(
                f"{self.path}: {what}; {len(self):,} finished points are kept there, continue with --resume"
            ) from error
        self._records[key] = record

    def _append(self, line: bytes) -> None:
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            end = os.fstat(descriptor).st_size
            if end and os.pread(descriptor, 1, end - 1) != b"\n":
                line = b"\n" + line
            try:
                written = os.write(descriptor, line)
                if written < len(line):
                    # the rest says why, or goes through
                    os.write(descriptor, line[written:])
            except OSError:
                os.ftruncate(descriptor, end)
                raise
        finally:
            os.close(descriptor)

    def __delitem__(self, key: str) -> None:
        raise TypeError("a journal forgets nothing")

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)
