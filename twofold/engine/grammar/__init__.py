"""Structured output: the tokens that may follow, so that a completion matches its grammar."""
