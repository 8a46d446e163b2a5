"""The exception tree of engined. Every process uses it; it imports nothing of ours.

    EnginedError                      anything that we raise on purpose
    ├── ConfigError                   an option is unknown, malformed or contradicts another one
    ├── ModelError                    the model cannot be served
    │   ├── ModelNotFoundError        no such folder, file or name, or the download failed
    │   ├── CheckpointError           a file is damaged, or its tensors are not those of the model
    │   └── UnsupportedModelError     well-formed, but a family or feature that we do not implement
    ├── ListenError                   a port or a socket path cannot be taken
    ├── KernelError                   the CPU kernels cannot be built or loaded
    ├── StartupError                  a child process could not start
    ├── EngineDeadError               the engine, or one of its ranks, is gone
    ├── ProtocolError                 a peer sent a frame that breaks the protocol
    ├── BatchError                    a batch file cannot be read, written or resumed
    ├── BenchError                    what is to be measured cannot be reached, or fails
    ├── GrammarError                  a constraint cannot be compiled, or its sequence left it
    └── RequestError                  one request is at fault: answered with a 4xx or 5xx
        └── ContextLengthError        the prompt does not fit the context or the KV cache

An exception knows the exit code of the process that dies of it (sysexits.h where it fits).
"""


class EnginedError(Exception):
    """Base of the tree. `str(error)` is a sentence for the user: what is wrong, where, and the remedy."""

    exit_code = 70


class ConfigError(EnginedError):
    """An option is unknown, malformed or contradicts another one. The message names the option."""

    exit_code = 2


class ModelError(EnginedError):
    """The model cannot be served. The message names the file."""

    exit_code = 65


class ModelNotFoundError(ModelError):
    """No such folder, file or catalogue name, or it could not be downloaded."""

    exit_code = 66


class CheckpointError(ModelError):
    """A model file is damaged, or its tensors are not the ones that the model needs."""


class UnsupportedModelError(ModelError):
    """The model is well-formed, but of a family or with a feature that is not implemented."""


class ListenError(EnginedError):
    """A port or a socket path cannot be taken, usually because another server holds it."""

    exit_code = 75


class KernelError(EnginedError):
    """The CPU kernels cannot be built or loaded. The message says why, and what to install."""

    exit_code = 69


class StartupError(EnginedError):
    """A child process failed to start; the text is the child's own cause."""

    def __init__(self, message: str, exit_code: int = 70) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class EngineDeadError(EnginedError):
    """The engine core, or one of its ranks, is gone; every open request has failed."""


class ProtocolError(EnginedError):
    """A peer sent a frame that breaks the protocol. The link must be closed."""


class BatchError(EnginedError):
    """A batch file cannot be read, written or resumed. The message names the file."""

    exit_code = 65


class BenchError(EnginedError):
    """What is to be measured cannot be reached, or fails. The message names the server."""

    exit_code = 69


class GrammarError(EnginedError):
    """What constrains an output cannot be compiled, or the sequence left it. The message is the reason alone."""


class RequestError(EnginedError):
    """One request is at fault, or cannot be taken now.

    `status` is the HTTP status; `param` names the offending field; `code` is OpenAI's machine-readable string;
    `retry_after` are the seconds after which it may be tried again, where that is known.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
        type: str = "invalid_request_error",
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
        self.status = status
        self.type = type
        self.retry_after = retry_after


class ContextLengthError(RequestError):
    """The prompt does not fit the model's context or the KV cache."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message, param=param, code="context_length_exceeded")
