"""Runs the model for the core: in the core's own process, or fanned out to one worker process a rank."""
