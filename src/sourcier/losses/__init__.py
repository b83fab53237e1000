"""Losses: pure functions of scores and activations. They know no model and no process group."""
