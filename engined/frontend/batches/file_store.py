"""The files that clients uploaded and that batches wrote. Frontend process; one folder a file, one index in memory.

files/<id>/file.json    what the API says about it, and whose it is
files/<id>/content      its bytes
"""

import asyncio
import logging
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec
from msgspec import Struct

from engined import faults
from engined.errors import RequestError
from engined.frontend.api.files import FileObject
from engined.frontend.batches.disk import NewFolder, remove_folder, write_whole

logger = logging.getLogger(__name__)

RECORD_NAME = "file.json"
CONTENT_NAME = "content"


class StoredFile(Struct, kw_only=True, frozen=True):
    """One file, as its record says."""

    owner: str
    """The API key of its owner, as a hexadecimal digest; empty if it came without one."""
    file: FileObject


class FileStore:
    """All files. A file belongs to the API key that it came with; others cannot tell that it exists."""

    def __init__(self, folder: Path) -> None:
        """Read the records. Raises OSError."""
        self._folder = folder
        self._files: dict[str, StoredFile] = {}
        for path in sorted(folder.glob(f"*/{RECORD_NAME}")):
            try:
                stored = msgspec.json.decode(path.read_bytes(), type=StoredFile)
            except msgspec.DecodeError as error:
                logger.warning("%s cannot be read and is left out: %s", path, error)
            else:
                self._files[stored.file.id] = stored

    def get(self, file_id: str, owner: str) -> FileObject:
        """One file. Raises RequestError 404."""
        stored = self._files.get(file_id)
        if stored is None or stored.owner != owner:
            raise RequestError(f"there is no file {file_id[:64]!r}", param="file_id", code="not_found", status=404)
        return stored.file

    def list(self, owner: str) -> list[FileObject]:
        """The files of one owner, newest first."""
        mine = [stored.file for stored in self._files.values() if stored.owner == owner]
        return sorted(mine, key=lambda file: (file.created_at, file.id), reverse=True)

    def content_path(self, file_id: str) -> Path:
        """Where the bytes of a file are. The id must have been looked up by `get`, now or when it was noted down."""
        return self._folder / file_id / CONTENT_NAME

    @contextmanager
    def upload(self) -> Iterator["Upload"]:
        """A new file to be written; unless it is finished inside the block, nothing is left of it."""
        file_id = f"file-{uuid.uuid4().hex}"
        with NewFolder(self._folder / file_id) as folder, (folder.path / CONTENT_NAME).open("wb") as content:
            yield Upload(self, file_id, folder, content)

    def publish(self, file_id: str, source: Path, filename: str, owner: str) -> None:
        """Make a finished output a file, unless that was done already. The bytes are not copied. Raises OSError."""
        if file_id in self._files:
            return
        with NewFolder(self._folder / file_id) as folder:
            os.link(source, folder.path / CONTENT_NAME)
            self.add(folder, file_id, filename, "batch_output", owner)

    def add(
        self, folder: NewFolder, file_id: str, filename: str, purpose: Literal["batch", "batch_output"], owner: str
    ) -> FileObject:
        """Take in a folder whose content is on the disk. Raises OSError."""
        file = FileObject(
            id=file_id,
            bytes=(folder.path / CONTENT_NAME).stat().st_size,
            created_at=int(time.time()),
            filename=filename,
            purpose=purpose,
        )
        stored = StoredFile(owner=owner, file=file)
        write_whole(folder.path / RECORD_NAME, msgspec.json.encode(stored))
        folder.commit()
        self._files[file_id] = stored
        return file

    def delete(self, file_id: str) -> None:
        """Remove a file. Raises OSError."""
        remove_folder(self._folder / file_id)
        del self._files[file_id]


class Upload:
    """A file that is being received."""

    def __init__(self, store: FileStore, file_id: str, folder: NewFolder, content: BinaryIO) -> None:
        self.num_bytes = 0
        self._store = store
        self._file_id = file_id
        self._folder = folder
        self._content = content

    def write(self, data: bytes) -> None:
        """Append to it. Raises OSError."""
        faults.point("disk")
        self._content.write(data)
        self.num_bytes += len(data)

    async def finish(self, filename: str, owner: str) -> FileObject:
        """Make it a file, once it is on the disk. Raises OSError."""
        self._content.flush()
        await asyncio.to_thread(os.fsync, self._content.fileno())
        return self._store.add(self._folder, self._file_id, filename, "batch", owner)
