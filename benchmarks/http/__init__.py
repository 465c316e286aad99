"""Measurements over HTTP on loopback: overhead of the server over its engine, and comparison with other servers."""
