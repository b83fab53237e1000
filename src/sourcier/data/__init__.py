"""Data of a user: collections with judgments, training examples, batches of them, and a corpus made on the spot."""
