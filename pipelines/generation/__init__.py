"""Generation: prompts as ids, and text from the model of a run."""
