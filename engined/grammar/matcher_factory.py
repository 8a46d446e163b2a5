"""From the constraints of a request to the matcher that follows its output. Engine core; called by its threads."""

from engined.checkpoint.model_info import ModelInfo
from engined.grammar.compiler import GrammarCompiler
from engined.grammar.matcher import GrammarMatcher
from engined.grammar.reasoning_markers import ReasoningTokenizer
from engined.grammar.reasoning_matcher import ReasoningMatcher
from engined.protocol.grammar import GrammarSpec
from engined.protocol.reasoning import ReasoningSpec
from engined.tokenization.tokenizer import load_tokenizer


class MatcherFactory:
    """Owns what all matchers of one model share. Thread-safe; the tokenizer is read at the first use."""

    def __init__(self, info: ModelInfo, compile_deadline_s: float) -> None:
        self._compiler = GrammarCompiler(
            lambda: load_tokenizer(info).backend, info.vocab_size, info.eos_token_ids, deadline_s=compile_deadline_s
        )
        self._reasoning = ReasoningTokenizer(lambda: load_tokenizer(info), info.vocab_size)
        self._eos_token_ids = info.eos_token_ids

    def create(self, grammar: GrammarSpec | None, reasoning: ReasoningSpec | None) -> GrammarMatcher:
        """A matcher at the beginning of an output; at least one of the two is given. Raises GrammarError."""
        inner = None if grammar is None else self._compiler.compile(grammar).new_matcher()
        if reasoning is not None:
            return ReasoningMatcher(reasoning, self._reasoning, inner, self._eos_token_ids)
        assert inner is not None, "a request without constraints needs no matcher"
        return inner
