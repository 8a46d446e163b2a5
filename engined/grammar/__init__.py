"""Grammars that constrain the output of a sequence, behind an interface of our own. llguidance does the work.

Used by the frontend (validation) and by the engine core; no torch. The way in is `GrammarCompiler`:

    compiler = GrammarCompiler(load_backend, vocab_size, eos_token_ids)    # cheap; the tokenizer is read at first use
    grammar = compiler.compile(spec)                                       # blocking; raises GrammarError
    matcher = grammar.new_matcher()                                        # microseconds; one for each sequence
"""
