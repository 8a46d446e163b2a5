"""Embeddings, scores and ranks: from a body to sequences that are pooled, and from their results to the answer."""
