"""Training: one loop for all families, from one process or many."""
