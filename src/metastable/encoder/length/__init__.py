"""Long texts: what a trained encoder does as texts grow, measured, explained and forecast."""
