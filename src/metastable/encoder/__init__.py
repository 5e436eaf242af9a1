"""Trained encoders: reading them, folding their heads, measuring their layers on text, and the audit of both."""
