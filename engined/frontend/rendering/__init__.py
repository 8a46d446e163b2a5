"""From messages or prompts to token ids: chat template, tokenizer, limits."""
