"""The history of an encoder during its training: records every few steps, a page, and a warning of collapse."""
