"""Configuration: frozen dataclasses, and the only code that reads flags, environment and TOML. No torch, no aiohttp."""
