"""Other engines, each driven by a script that runs in that engine's own environment."""
