"""Model files on disk: formats, headers, and the `ModelInfo` that they declare. No torch; every process may use it."""
