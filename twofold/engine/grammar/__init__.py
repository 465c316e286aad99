"""Structured output: which tokens may come next so that an answer has the form its caller asked for."""
