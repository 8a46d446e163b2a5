"""The engine as a library: `from engined import LLM, SamplingParams`. In the caller's process; no HTTP, no torch."""
