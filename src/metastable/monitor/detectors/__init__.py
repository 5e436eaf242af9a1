"""Detectors, one file each, behind the interface of `base.Detector`."""
