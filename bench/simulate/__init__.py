"""Deterministic simulation: complete runs, each from one seed, on a simulated cluster that injects faults."""
