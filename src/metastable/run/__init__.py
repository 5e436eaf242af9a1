"""A simulation and what can be measured on it."""
