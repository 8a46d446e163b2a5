"""Measuring: load on servers, the cost of the scheduler, of streaming and of the start. Runs in a process of its own,
`engined bench`; what it measures runs in other processes, but for the scheduler."""
