"""The scheduler: a state machine without I/O, clock or threads."""
