"""From a model's name to its files: the embedded catalogue, downloads, and hub ids."""
