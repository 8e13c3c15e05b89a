"""Fault injection on a real Ray cluster of several raylets: processes are killed while trainers read."""
