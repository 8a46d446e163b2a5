"""The bodies of requests: typed structs, and the parser that turns their faults into OpenAI's error object."""
