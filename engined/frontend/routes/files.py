"""/v1/files: what batches read and write. Frontend process."""

import asyncio
import re
from typing import IO, Annotated, Any, Literal

from aiohttp import BodyPartReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import HttpProcessingError
from msgspec import Meta

from engined.errors import RequestError
from engined.frontend.api.files import (
    MAX_FILE_BYTES,
    MAX_FILENAME_LENGTH,
    DeletedFile,
    FileList,
    FileObject,
    UploadForm,
)
from engined.frontend.api.operation import READ_ERRORS, Operation, Parameter
from engined.frontend.auth import CALLER_KEY
from engined.frontend.batches.file_store import Upload
from engined.frontend.batches.service import BatchService
from engined.frontend.http_errors import struct_response
from engined.frontend.routes.paging import choose, take_page

MAX_PAGE = 10_000
CHUNK_BYTES = 256 << 10
MAX_FORM_VALUE = 64
UPLOAD_SECONDS = 30.0
"""Until a form must be there, and a second more for each of these bytes that has come."""
SLOWEST_UPLOAD = 32 << 10
CONTENT_TYPE = "application/jsonl"
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]")


class _FileContent(web.FileResponse):
    """A file that is written piece by piece. With sendfile, nobody would notice a client that does not read."""

    async def _sendfile(self, request: web.BaseRequest, fobj: IO[Any], offset: int, count: int) -> AbstractStreamWriter:
        writer = await web.StreamResponse.prepare(self, request)
        assert writer is not None
        return await self._sendfile_fallback(writer, fobj, offset, count)


class FileRoutes:
    """Upload, list, read and delete files."""

    def __init__(self, service: BatchService) -> None:
        self._service = service

    def register(self, router: web.UrlDispatcher) -> None:
        """Add the routes."""
        router.add_post("/v1/files", self.upload)
        router.add_get("/v1/files", self.list_files)
        router.add_get("/v1/files/{file_id}", self.retrieve)
        router.add_delete("/v1/files/{file_id}", self.delete)
        router.add_get("/v1/files/{file_id}/content", self.content)

    async def upload(self, request: web.Request) -> web.Response:
        """Take in a file of requests for a batch."""
        if request.content_type != "multipart/form-data":
            raise RequestError("send the file as multipart/form-data", status=415, code="unsupported_media_type")
        if (request.content_length or 0) > MAX_FILE_BYTES + CHUNK_BYTES:
            raise _too_large()
        with self._service.files.upload() as upload:
            try:
                async with asyncio.timeout(UPLOAD_SECONDS) as limit:
                    filename = await _receive(request, upload, limit)
                return struct_response(await upload.finish(filename, _owner(request)))
            except TimeoutError:
                text = f"the file came at less than {SLOWEST_UPLOAD >> 10} KiB a second"
                raise RequestError(text, status=408, code="request_timeout") from None
            except (ValueError, HttpProcessingError):  # what aiohttp raises for a broken form
                raise RequestError("the body is not valid multipart/form-data", code="invalid_form") from None
            except OSError as error:
                raise _not_written(error) from None

    async def list_files(self, request: web.Request) -> web.Response:
        """List the files."""
        files = self._service.files.list(_owner(request))
        if (purpose := request.query.get("purpose")) is not None:
            files = [file for file in files if file.purpose == purpose]
        if choose(request.query, "order", ("asc", "desc"), "desc") == "asc":
            files.reverse()
        page, has_more = take_page(files, request.query, default=MAX_PAGE, maximum=MAX_PAGE)
        first_id, last_id = (page[0].id, page[-1].id) if page else (None, None)
        return struct_response(FileList(data=page, first_id=first_id, last_id=last_id, has_more=has_more))

    async def retrieve(self, request: web.Request) -> web.Response:
        """Describe a file."""
        return struct_response(self._service.files.get(request.match_info["file_id"], _owner(request)))

    async def delete(self, request: web.Request) -> web.Response:
        """Delete a file."""
        file_id = request.match_info["file_id"]
        self._service.delete_file(file_id, _owner(request))
        return struct_response(DeletedFile(id=file_id))

    async def content(self, request: web.Request) -> web.StreamResponse:
        """Read a file."""
        file = self._service.files.get(request.match_info["file_id"], _owner(request))
        path = self._service.files.content_path(file.id)
        return _FileContent(path, headers={"Content-Type": CONTENT_TYPE}, chunk_size=CHUNK_BYTES)

    def operations(self) -> tuple[Operation, ...]:
        """What the routes answer."""
        limit = Annotated[int, Meta(ge=1, le=MAX_PAGE)]
        return (
            Operation(
                method="POST",
                path="/v1/files",
                summary="Upload a file of requests for a batch",
                tag="Batch",
                request=UploadForm,
                request_media_type="multipart/form-data",
                response=FileObject,
                error_statuses=(400, 408, 413, 415, 429, *READ_ERRORS),
            ),
            Operation(
                method="GET",
                path="/v1/files",
                summary="List the files",
                tag="Batch",
                parameters=(
                    Parameter(name="purpose", description="Only files of this purpose: batch or batch_output."),
                    Parameter(name="limit", description=f"Files of a page; default {MAX_PAGE}.", type=limit),
                    Parameter(name="order", description="By time; default desc.", type=Literal["asc", "desc"]),
                    Parameter(name="after", description="The last file of the page before."),
                ),
                response=FileList,
                error_statuses=(400, *READ_ERRORS),
            ),
            Operation(
                method="GET",
                path="/v1/files/{file_id}",
                summary="Describe a file",
                tag="Batch",
                response=FileObject,
                error_statuses=(404, *READ_ERRORS),
            ),
            Operation(
                method="DELETE",
                path="/v1/files/{file_id}",
                summary="Delete a file",
                tag="Batch",
                response=DeletedFile,
                error_statuses=(400, 404, *READ_ERRORS),
            ),
            Operation(
                method="GET",
                path="/v1/files/{file_id}/content",
                summary="Read a file",
                tag="Batch",
                response_media_type=CONTENT_TYPE,
                error_statuses=(404, *READ_ERRORS),
            ),
        )


async def _receive(request: web.Request, upload: Upload, limit: asyncio.Timeout) -> str:
    """Read the form; the file goes to `upload` as it comes, and puts off the `limit`. Returns its name.

    Raises RequestError.
    """
    deadline = asyncio.get_running_loop().time() + UPLOAD_SECONDS
    filename: str | None = None
    purpose: str | None = None
    async for part in await request.multipart():
        if not isinstance(part, BodyPartReader):
            raise RequestError("a part of the form is a form itself", code="invalid_form")
        if part.name == "file" and filename is None:
            filename = _clean_name(part.filename)
            while chunk := await part.read_chunk(CHUNK_BYTES):
                upload.write(chunk)
                limit.reschedule(deadline + upload.num_bytes / SLOWEST_UPLOAD)
                if upload.num_bytes > MAX_FILE_BYTES:
                    raise _too_large()
        elif part.name == "purpose" and purpose is None:
            purpose = (await part.read_chunk(MAX_FORM_VALUE)).decode()
            if purpose != "batch":
                raise RequestError("purpose must be batch: other files have no use here", param="purpose")
        else:
            name = (part.name or "")[:MAX_FORM_VALUE]
            raise RequestError(
                f"{name!r} is not a field of this form, or is there twice: send file and purpose",
                param=name,
                code="unknown_parameter",
            )
    for name, value in (("file", filename), ("purpose", purpose)):
        if value is None:
            raise RequestError(f"{name} is required", param=name, code="missing_required_parameter")
    assert filename is not None
    return filename


def _clean_name(name: str | None) -> str:
    """The name is only shown; nothing on the disk is called so."""
    return _UNPRINTABLE.sub("", name or "")[:MAX_FILENAME_LENGTH] or "upload.jsonl"


def _owner(request: web.Request) -> str:
    return request[CALLER_KEY].hex()


def _too_large() -> RequestError:
    return RequestError(
        f"the file is larger than {MAX_FILE_BYTES >> 20} MiB: split it", param="file", code="file_too_large", status=413
    )


def _not_written(error: OSError) -> RequestError:
    return RequestError(
        f"the file could not be stored: {error.strerror}", status=500, type="server_error", code="storage_failed"
    )
