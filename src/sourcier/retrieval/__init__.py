"""Retrievers: an encoder, an index and the documents, behind one `search`."""
