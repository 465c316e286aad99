"""Measurements of a fleet. ``python -m benchmarks.fleet --help`` says what there is."""
