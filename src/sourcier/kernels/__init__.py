"""Memory-lean scoring and pooling, each beside the plain form that it is tested against."""
