"""Answers that are kept, and given again where exactly the same is asked."""
