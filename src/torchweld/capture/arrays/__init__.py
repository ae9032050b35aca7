"""NumPy in captured code: arrays by the tensors that have their memory (ADR 0023)."""
