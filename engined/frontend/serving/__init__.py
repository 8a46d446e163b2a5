"""Requests into engine requests, outputs into responses: chat completions, completions, and their streams."""
