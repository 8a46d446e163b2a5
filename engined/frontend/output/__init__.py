"""From token ids to text: detokenizing, stop strings, logprobs, and one collector for each HTTP request."""
