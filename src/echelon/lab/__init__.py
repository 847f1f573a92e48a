"""Hosts in network namespaces on one Linux machine, each with its own sshd, line rate and CPU share."""
