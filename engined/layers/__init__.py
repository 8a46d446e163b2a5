"""Building blocks of models: sharded linear layers, embeddings, norms, rotary embedding. Rank processes only."""
