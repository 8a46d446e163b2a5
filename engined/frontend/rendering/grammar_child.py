"""A process that compiles the constraints of requests for one frontend, and is killed if that takes too long.

Started by `grammar_checker`. It reads a GrammarSpec a line, as JSON, and answers with a line of JSON: null, or the
reason why the grammar cannot be kept. Before the first it says that it is ready, in a line of its own.
"""

import json
import os
import socket

import msgspec
from tokenizers import Tokenizer

from engined.errors import GrammarError
from engined.grammar.compiler import GrammarCompiler
from engined.process.child import Child
from engined.protocol.grammar import GrammarSpec


def main(child: Child) -> int:
    """Answer until the frontend closes the link."""
    with os.fdopen(child.fds["tokenizer"], "rb") as file:
        backend = Tokenizer.from_buffer(file.read())
    # A far deadline: the frontend has the clock, and a signal that no compilation can ignore.
    compiler = GrammarCompiler(
        lambda: backend, child.data["vocab_size"], child.data["eos_token_ids"], deadline_s=child.data["deadline_s"]
    )
    compiler.compile(GrammarSpec(kind="choice", value='["ready"]'))
    with socket.socket(fileno=child.fds["link"]) as link, link.makefile("rwb") as lines:
        lines.write(b"null\n")
        lines.flush()
        for line in lines:
            lines.write(json.dumps(_fault(compiler, msgspec.json.decode(line, type=GrammarSpec))).encode() + b"\n")
            lines.flush()
    return 0


def _fault(compiler: GrammarCompiler, grammar: GrammarSpec) -> str | None:
    try:
        compiler.compile(grammar)
    except GrammarError as error:
        return str(error)
    return None
