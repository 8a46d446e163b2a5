"""One sequence on its way through the engine core. Made by the input thread, then touched by the busy loop only."""

from enum import Enum, auto

from engined.cache.block_hash import BlockHasher
from engined.cache.kv_cache_manager import BlockTable
from engined.grammar.matcher import GrammarMatcher
from engined.protocol.engine import EngineCoreRequest, Started


class RequestStatus(Enum):
    """Where a request stands. WAITING has never run; PREEMPTED waits again and starts over."""

    WAITING = auto()
    RUNNING = auto()
    PREEMPTED = auto()
    FINISHED = auto()


class Request:
    """The state of one sequence.

    `token_ids` is the prompt, then the output; `num_computed_tokens` of them have KV entries. The scheduler moves the
    second number up to the first. Only the scheduler changes a request, and the cache its block table and hashes.
    """

    __slots__ = (
        "arrival_time",
        "attention_at",
        "block_hashes",
        "block_table",
        "client_index",
        "grammar",
        "reasoning",
        "is_background",
        "is_plain",
        "jumps_forward",
        "matcher",
        "max_num_tokens",
        "min_num_tokens",
        "num_computed_tokens",
        "num_preemptions",
        "num_prompt_logprobs_sent",
        "num_prompt_tokens",
        "num_slots",
        "pending_start",
        "pooling",
        "priority",
        "reads_prefix_cache",
        "request_id",
        "sampling",
        "sort_key",
        "spare_shift",
        "status",
        "stop_token_ids",
        "tenant",
        "tenant_weight",
        "token_ids",
    )

    def __init__(self, message: EngineCoreRequest, client_index: int, hasher: BlockHasher | None) -> None:
        """Prepare a request for the scheduler, with the hashes of its prompt; a pure function of its arguments.

        `client_index` names the frontend that gets the outputs; `hasher` is that of the KVCacheManager.
        """
        self.request_id = message.request_id
        self.client_index = client_index
        self.arrival_time = message.arrival_time
        self.priority = message.priority
        self.is_background = message.is_background
        self.sampling = message.sampling
        self.pooling = message.pooling
        self.token_ids = list(message.prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.num_computed_tokens = 0
        self.status = RequestStatus.WAITING
        self.num_preemptions = 0
        self.spare_shift = 0
        """How often the cache was too small for it and those before it; see Scheduler."""

        self.min_num_tokens = self.num_prompt_tokens + self.sampling.min_tokens
        """Prompt and output, in tokens, that must exist before a stop token counts."""
        self.max_num_tokens = self.num_prompt_tokens + self.sampling.max_tokens
        """Prompt and output, in tokens, at which the sequence ends."""
        self.stop_token_ids = self.sampling.all_stop_token_ids

        self.reads_prefix_cache = self.sampling.prompt_logprobs is None
        """A position that came from the cache has no logits."""
        self.block_hashes = None if hasher is None else hasher.chain((message.cache_salt,))
        if self.block_hashes is not None:
            self.block_hashes.extend(self.token_ids)
        self.block_table: BlockTable | None = None
        self.num_slots = 0

        self.tenant = message.tenant
        self.tenant_weight = message.tenant_weight
        self.grammar = message.grammar
        self.reasoning = message.reasoning
        self.matcher: GrammarMatcher | None = None
        """Follows the output through `reasoning` and `grammar`; set by the core before the scheduler gets the
        request, if it has one of them."""
        self.jumps_forward = (
            self.sampling.logprobs is None
            and self.sampling.allowed_token_ids is None
            and not self.sampling.bad_words_ids
        )
        """Whether tokens that the grammar forces are taken without asking the model, which has no say in them."""

        self.is_plain = (
            self.pooling is None
            and self.grammar is None
            and self.reasoning is None
            and self.sampling.logprobs is None
            and self.sampling.prompt_logprobs is None
        )
        """Whether its results are tokens, and nothing else."""
        self.attention_at = 0
        """While it has fewer tokens than this, a step adds one to them, unless that is a stop token, and does nothing
        else with the request; then its sequence ends. 0 for one that does not run, or that needs more in every step.
        Set by the ResultIntake."""

        self.sort_key: tuple[float, ...] = ()
        """Place in the order of the scheduling policy; set by the RequestQueue."""
        self.pending_start: Started | None = None
        """Set when it first runs, cleared when its first output leaves."""
        self.num_prompt_logprobs_sent = 0
        """Prompt positions already reported; a preempted request computes them again."""
