"""Integrators, one file each, the step control for the adaptive one, and the exact flows."""
