"""A real cluster of several raylets whose parts are killed while trainers read."""
