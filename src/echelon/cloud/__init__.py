"""Rented machines: pricing, creation, discovery and removal."""
