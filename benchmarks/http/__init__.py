"""Measurements over HTTP, on loopback: what the server adds to its engine, and other servers beside it."""
