"""Clusters on AWS. Everything carries the tags in context.py; nothing without them is ever removed."""
