"""Looking inside a model: attention maps, circuits and the geometry of embeddings."""
