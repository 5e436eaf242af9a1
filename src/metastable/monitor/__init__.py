"""Watching a trained encoder: p-values of texts, alarms on streams. Higher scores are more anomalous, everywhere."""
