"""Batches: the body of POST /v1/batches, and what the routes answer. Frontend process."""

from typing import Annotated, Literal

from msgspec import UNSET, Struct

from engined.frontend.api.support import Unsupported, honoured, refused

MAX_BATCH_LINES = 50_000
MAX_METADATA_PAIRS = 16
MAX_METADATA_KEY = 64
MAX_METADATA_VALUE = 512
COMPLETION_SECONDS = 24 * 3600

BatchStatus = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]


class CreateBatchRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """The whole body."""

    input_file_id: Annotated[str, honoured("A file uploaded for the purpose batch.")]
    endpoint: Annotated[str, honoured("The url of all its lines, for example /v1/chat/completions.")]
    completion_window: Annotated[str, honoured("Only 24h.", enum=["24h"])]
    metadata: Annotated[
        dict[str, str] | None, honoured(f"At most {MAX_METADATA_PAIRS} pairs, given back with the batch.")
    ] = None
    output_expires_after: Annotated[Unsupported, refused("leave it out, and delete the files when you are done")] = (
        UNSET
    )


class RequestCounts(Struct, kw_only=True, frozen=True):
    """How far a batch has come, in lines."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchFault(Struct, kw_only=True, frozen=True):
    """Why a batch failed as a whole."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None
    """The line of the input file."""


class BatchFaultList(Struct, kw_only=True, frozen=True):
    """All reasons, up to a limit."""

    object: Literal["list"] = "list"
    data: list[BatchFault]


class BatchObject(Struct, kw_only=True, frozen=True):
    """One batch. Times are Unix times."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    errors: BatchFaultList | None = None
    input_file_id: str
    completion_window: str = "24h"
    status: BatchStatus
    output_file_id: str | None = None
    """The results of the requests that succeeded."""
    error_file_id: str | None = None
    """The results of those that did not."""
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = RequestCounts()
    metadata: dict[str, str] | None = None


class BatchList(Struct, kw_only=True):
    """A page of batches."""

    object: Literal["list"] = "list"
    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool
