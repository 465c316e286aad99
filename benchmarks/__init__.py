"""Side-by-side measurements. ``python -m benchmarks --help`` says what there is."""
