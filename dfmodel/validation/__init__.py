"""Predictions beside published measurements, and the constants fitted to those that may set them."""
