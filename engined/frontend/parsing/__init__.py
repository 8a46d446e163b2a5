"""From the text of a model to reasoning, content and tool calls: one parser for streams and whole answers alike."""
