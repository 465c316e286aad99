"""Structured output: which tokens may follow so that a completion has the form that its caller asked for."""
