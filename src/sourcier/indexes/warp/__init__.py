"""Approximate MaxSim: centroids, residual codes and inverted lists, in the manner of PLAID and WARP."""
