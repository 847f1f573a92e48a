"""Echelon: from one recipe file to a trained, evaluated and explained model, on any cluster."""

__version__ = "0.1.0"
