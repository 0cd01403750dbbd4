"""Weights, state, executors and the engine."""
