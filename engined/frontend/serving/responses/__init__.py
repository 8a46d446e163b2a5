"""The Responses API: items and messages, the event stream, the store of earlier responses."""
