"""How long trainers of each framework wait for data."""
