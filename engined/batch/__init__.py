"""Batches of requests in OpenAI's file format: lines in, results out, each exactly once. Used by `engined run-batch`
and by the frontend; it knows neither HTTP nor the engine, only a function that answers one line."""
