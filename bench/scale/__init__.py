"""Scale simulation: the real planner, scheduler and driver on a simulated cluster."""
