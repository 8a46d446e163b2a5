"""The tokenizer of the model: text to ids and back. Used by the frontend and by the engine core; no torch."""
