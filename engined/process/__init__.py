"""Child processes: how a parent starts and watches one, and what a child does in its first lines."""
