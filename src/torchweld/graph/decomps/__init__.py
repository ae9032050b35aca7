"""Decompositions written here: one module per topic, each registers into `TABLE` when imported."""
