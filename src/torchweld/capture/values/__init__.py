"""Abstract values: one class per family of Python objects."""
