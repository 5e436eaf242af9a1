"""Velocity fields, integrators with step control, exact flows, merging, and the mean-field solver."""
