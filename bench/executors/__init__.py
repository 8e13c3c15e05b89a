"""Several trainers on threads and on Ray: their speed, and the CPU time of each part of Ray."""
