"""Which requests advance in each step, and when they end. Pure policy: no torch, no IO, the clock is passed in."""
