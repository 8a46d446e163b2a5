"""The JSON-Schema-Test-Suite of draft 2020-12: what compiles is enforced as the specification says.

An invalid document that a grammar lets through is a broken promise. A valid one that it cannot produce is a loss of
variety, most often of another spelling of the same value: those are counted, and each has its reason here.
"""

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from engined.errors import GrammarError
from engined.grammar.compiler import CompiledGrammar, GrammarCompiler
from engined.protocol.grammar import GrammarSpec
from tests.grammar.byte_tokens import accepts, random_text
from tests.packages import Package, unpack

SUITE = Package(
    requirement="jsonschema==4.26.0",
    sha256="0c26707e2efad8aa1bfc5b7ce170f3fccc2e4918ff85989ba9ffa9facb2be326",
    is_source=True,
)
FOLDER = "json/tests/draft2020-12"
NUM_WALKS = 8

UNSUPPORTED = {
    *("contains", "minContains", "maxContains", "dependentRequired", "dependentSchemas", "if", "then", "else", "not"),
    *("propertyNames", "unevaluatedItems", "unevaluatedProperties", "uniqueItems", "$dynamicRef", "$dynamicAnchor"),
}
"""Keywords that are refused with their name. `oneOf` is taken where its branches exclude each other."""

CANNOT_PRODUCE = {
    "allOf": "properties come in the order of the schemas",
    "const": "a number is spelled as in the schema, properties come in its order, control characters are refused",
    "enum": "a number is spelled as in the schema",
    "format": "a format is enforced, not an annotation",
    "type": "an integer has no fraction",
    "optional/ecmascript-regex": "control characters cannot be written: a string has one spelling",
    "optional/format/date-time": "no leap seconds, capital T and Z, microseconds at most",
    "optional/format/time": "no leap seconds, capital Z, microseconds at most",
    "optional/format/email": "no quoted local parts, no address literals",
    "optional/format/ipv6": "no embedded IPv4 addresses",
}
"""By file: why a valid instance is refused."""

LETS_THROUGH = {
    ("optional/ecmascript-regex", "zero-width whitespace does not match"): r"\S follows Unicode: U+FEFF is no space",
}
"""Invalid instances that are accepted, all in the optional part of the suite."""

VALIDATOR_DIFFERS = {
    "optional/ecmascript-regex": r"Python's \W and \D follow Unicode where ECMA 262, and the grammar, follow ASCII",
}
"""Files whose schemas mean something else to the jsonschema package, which uses Python's regular expressions."""


@dataclass(frozen=True)
class Case:
    """One schema of the suite, with its instances."""

    file: str
    description: str
    schema: Any
    instances: list[dict[str, Any]]
    grammar: CompiledGrammar | None
    refusal: str


@pytest.fixture(scope="session")
def cases(byte_compiler: GrammarCompiler) -> list[Case]:
    """Every schema of the suite, optional parts too, compiled where it can be."""
    folder = next(unpack(SUITE, "/json/").glob(f"*/{FOLDER}"))
    return list(_cases(folder, byte_compiler))


def _cases(folder: Path, compiler: GrammarCompiler) -> Iterator[Case]:
    for path in sorted(folder.rglob("*.json")):
        file = path.relative_to(folder).with_suffix("").as_posix()
        for group in json.loads(path.read_text()):
            grammar, refusal = None, ""
            spec = GrammarSpec(kind="json_schema", value=json.dumps(group["schema"]), any_whitespace=False)
            try:
                grammar = compiler.compile(spec)
            except GrammarError as error:
                refusal = str(error)
            yield Case(file, group["description"], group["schema"], group["tests"], grammar, refusal)


def test_every_schema_compiles_or_is_refused_with_a_reason(cases: list[Case]) -> None:
    required = [case for case in cases if not case.file.startswith("optional/")]
    refused = [case for case in required if case.grammar is None]
    for case in refused:
        assert case.refusal and "\n" not in case.refusal and len(case.refusal) < 500, case
    reasons = Counter(reason(case) for case in refused)
    print(f"\n{len(required)} schemas: {len(required) - len(refused)} compiled, {len(refused)} refused")
    for name, number in reasons.most_common():
        print(f"  {number:4} {name}")
    assert len(required) - len(refused) >= 150
    # A refusal is for a keyword that is known to be missing, a document of another server, or because nothing matches.
    assert set(reasons) <= {
        *UNSUPPORTED,
        *("nothing matches", "oneOf", "format", "remote", "patterns overlap", "decimal", "control character"),
        *("multipleOf", "minProperties", "pattern", "too many properties"),
    }, reasons


def reason(case: Case) -> str:
    """The kind of a refusal."""
    kinds = {
        "nsatisfiable": "nothing matches",
        "no text matches": "nothing matches",
        "something matches": "nothing matches",
        "oneOf": "oneOf",
        "Unknown format": "format",
        "not present in a registry": "remote",
        "not disjoint": "patterns overlap",
        "Expected positive integer": "decimal",
        "control character": "control character",
        "multipleOf": "multipleOf",
        "minProperties": "minProperties",
        "in/maxProperties": "minProperties",
        "regex parse error": "pattern",
        "lookaround": "pattern",
        "in a class": "pattern",
    }
    if "Unimplemented keys" in case.refusal:
        return next((key for key in sorted(UNSUPPORTED) if f'"{key}"' in case.refusal), case.refusal)
    return next((kind for text, kind in kinds.items() if text in case.refusal), case.refusal)


def test_instances_are_accepted_as_the_specification_says(cases: list[Case]) -> None:
    counts: Counter[str] = Counter()
    let_through, not_produced = set(), set()
    for case in cases:
        part = "optional" if case.file.startswith("optional/") else "required"
        for instance in case.instances if case.grammar else ():
            text = json.dumps(instance["data"], separators=(",", ":"), ensure_ascii=False)
            is_accepted = accepts(case.grammar, text)
            if is_accepted == instance["valid"]:
                counts[f"{part}: agreed"] += 1
            elif is_accepted:
                counts[f"{part}: invalid, but accepted"] += 1
                let_through.add((case.file, instance["description"]))
            else:
                counts[f"{part}: valid, but cannot be produced"] += 1
                not_produced.add((case.file, case.description, instance["description"]))
    print()
    for name, number in sorted(counts.items()):
        print(f"  {number:4} {name}")
    assert let_through == set(LETS_THROUGH)
    assert {file for file, _, _ in not_produced} == set(CANNOT_PRODUCE), sorted(not_produced)
    assert counts["required: invalid, but accepted"] == 0
    assert counts["required: agreed"] >= 540


def test_whatever_a_grammar_lets_end_validates(cases: list[Case]) -> None:
    draw = random.Random(4)
    counts: Counter[str] = Counter()
    for case in cases:
        if case.grammar is None or case.file in VALIDATOR_DIFFERS:
            continue
        validator = jsonschema.Draft202012Validator(
            case.schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
        )
        for _ in range(NUM_WALKS):
            text = random_text(case.grammar, draw)
            counts["no end within 300 bytes" if text is None else "ended"] += 1
            if text is not None:
                validator.validate(json.loads(text))
    print(f"\n  random documents: {dict(counts)}")
    assert counts["ended"] > 1500
