"""The main process: sockets, children, signals. It never imports torch, transformers or aiohttp."""
