"""Smaller and faster encoders with a measured loss."""
