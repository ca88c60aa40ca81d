"""Tests of a device and its driver: correctness, limits, speed."""
