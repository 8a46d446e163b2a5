"""Compiles constraints, within limits, and remembers the results. Runs in threads of the frontend and of the core."""

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer

from engined.errors import GrammarError
from engined.grammar.cache import ByteBoundCache
from engined.grammar.limits import (
    CACHE_BYTES,
    COMPILE_SECONDS,
    COMPILE_STACK_BYTES,
    MAX_MASK_SECONDS,
    compiled_bytes,
    parser_limits,
)
from engined.grammar.matcher import GrammarMatcher, LlguidanceMatcher, first_reason, mask_bytes
from engined.grammar.source import name_place, to_source
from engined.grammar.vocabulary import load_vocabulary
from engined.protocol.grammar import GrammarSpec

# The stack size of new threads is a setting of the whole process.
_stack_size_lock = threading.Lock()


class CompiledGrammar:
    """A grammar that sequences can be held to."""

    def __init__(self, prototype: LLMatcher, vocab_size: int) -> None:
        self._prototype = prototype
        self._vocab_size = vocab_size

    def new_matcher(self) -> GrammarMatcher:
        """A matcher at the beginning of the grammar."""
        return LlguidanceMatcher(self._prototype.deep_copy(), self._vocab_size)


class GrammarCompiler:
    """Owns the library's view of the tokenizer, which is made at the first use, and the cache of grammars."""

    def __init__(
        self,
        load_backend: Callable[[], Tokenizer],
        vocab_size: int,
        eos_token_ids: Sequence[int],
        deadline_s: float = COMPILE_SECONDS,
    ) -> None:
        """`load_backend` gives the model's tokenizer; `vocab_size` is that of its logits."""
        self._load_backend = load_backend
        self._vocab_size = vocab_size
        self._eos_token_ids = list(eos_token_ids)
        self._deadline_s = deadline_s
        self._tokenizer_lock = threading.Lock()
        self._tokenizer: LLTokenizer | None = None
        self._cache: ByteBoundCache[GrammarSpec, CompiledGrammar] = ByteBoundCache(CACHE_BYTES)

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """The grammar of `spec`. Blocks until the deadline at most (longer when the tokenizer is read first).

        Raises GrammarError, whose text is the reason alone: the caller knows which field is at fault.
        """
        grammar = self._cache.get(spec)
        if grammar is None:
            source = to_source(spec)
            compilation = _Compilation(self._get_tokenizer(), source, self._vocab_size)
            try:
                prototype = compilation.run(self._deadline_s)
            except GrammarError as error:
                raise GrammarError(name_place(spec, source, str(error))) from None
            grammar = CompiledGrammar(prototype, self._vocab_size)
            self._cache.put(spec, grammar, compiled_bytes(source))
        return grammar

    def _get_tokenizer(self) -> LLTokenizer:
        with self._tokenizer_lock:
            if self._tokenizer is None:
                self._tokenizer = load_vocabulary(self._load_backend(), self._vocab_size, self._eos_token_ids)
            return self._tokenizer


class _Compilation:
    """One run of the library, in a thread of its own, which has the stack for it and can be given up."""

    def __init__(self, tokenizer: LLTokenizer, source: str, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._source = source
        self._mask = np.empty(mask_bytes(vocab_size), dtype=np.uint8)
        self._prototype: LLMatcher | None = None
        self._cause = "the compiler failed on it"

    def run(self, deadline_s: float) -> LLMatcher:
        """A matcher to copy. Raises GrammarError, also at the deadline; the thread then ends alone, within seconds."""
        with _stack_size_lock:
            before = threading.stack_size(COMPILE_STACK_BYTES)
            try:
                thread = threading.Thread(target=self._compile, name="grammar-compilation", daemon=True)
                thread.start()
            finally:
                threading.stack_size(before)
        thread.join(deadline_s)
        if thread.is_alive():
            raise GrammarError(f"it did not compile within {deadline_s} s: make it simpler")
        if self._prototype is None:
            raise GrammarError(self._cause)
        return self._prototype

    def _compile(self) -> None:
        prototype = LLMatcher(self._tokenizer, self._source, log_level=0, limits=parser_limits())
        if prototype.is_error():
            self._cause = first_reason(prototype.get_error())
            return
        # What no text can match shows at the first mask, and so does what is slow to follow.
        probe = prototype.deep_copy()
        started = time.thread_time()
        probe.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        if probe.is_error():
            self._cause = f"no text matches it, or too many do ({first_reason(probe.get_error())})"
        elif time.thread_time() - started > MAX_MASK_SECONDS:
            self._cause = "it is too slow to follow: make it simpler"
        else:
            self._prototype = prototype
