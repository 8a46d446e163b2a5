"""engined: an LLM inference server. Importing this package loads nothing heavy."""

__version__ = "0.1.0"
