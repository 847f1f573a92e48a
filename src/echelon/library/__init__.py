"""Echelon from Python: recipes built in code, training, and runs as objects (docs/python.md)."""
