"""A simulated cluster under the real planner, scheduler and driver."""
