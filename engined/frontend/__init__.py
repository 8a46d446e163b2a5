"""The frontend process: HTTP, rendering, tokenizing, detokenizing and streaming. It never imports torch."""
