"""HTTP routes: each reads a body, calls one thing, and answers."""
