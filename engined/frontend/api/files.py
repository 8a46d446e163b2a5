"""Uploaded files: the form of POST /v1/files, and what the routes answer. Frontend process."""

from typing import Annotated, Literal

from msgspec import Struct

from engined.frontend.api.support import honoured

MAX_FILE_BYTES = 200 << 20
"""Of one upload; --max-body-size is for JSON bodies."""
MAX_FILENAME_LENGTH = 255


class UploadForm(Struct, kw_only=True):
    """The form, as multipart/form-data."""

    file: Annotated[bytes, honoured(f"At most {MAX_FILE_BYTES >> 20} MiB; streamed to the disk.")]
    purpose: Annotated[Literal["batch"], honoured("batch: the lines of a batch.")]


class FileObject(Struct, kw_only=True, frozen=True):
    """One file."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    """Its size."""
    created_at: int
    """Unix time."""
    filename: str
    purpose: Literal["batch", "batch_output"]
    """What it was uploaded for, or that a batch wrote it."""
    status: Literal["processed"] = "processed"


class FileList(Struct, kw_only=True):
    """A page of files."""

    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedFile(Struct, kw_only=True):
    """The answer to a deletion."""

    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True
