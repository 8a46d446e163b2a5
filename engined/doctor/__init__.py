"""What `engined doctor` looks at: the machine, what it computes with, files, the service. Process of the command."""
