"""Searching for the best settings of a recipe: what varies, which trials there are, and which of them continue."""
