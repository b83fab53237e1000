"""Measuring: TREC run files, retrieval measures through ir-measures, tables and comparisons."""
