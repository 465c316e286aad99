"""Workers of other engines; each script runs in the environment of its engine."""
