"""Model definitions, the table of families, and the loader that fills them. Rank processes only."""
