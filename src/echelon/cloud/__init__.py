"""Rented machines: what they cost, how they are made, found again and removed."""
