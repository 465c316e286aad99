"""Structured output: which tokens may come next so that a completion has the form its caller asked for."""
