"""/v1/messages: Anthropic's bodies into chat completions, and their outputs into Anthropic's messages and events."""
