"""Tests of `windrow.pipeline.executors.processes`."""
