"""Sampling over the whole batch: masks, penalties, truncation, a counter-based draw, and log-probabilities."""
