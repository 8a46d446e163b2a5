"""The EngineCore process: IO threads, the busy loop, and the step that joins scheduler and executor."""
