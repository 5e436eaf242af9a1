"""Watching a trained encoder: p-values of single texts, alarms on streams. A higher score is more anomalous, everywhere."""
