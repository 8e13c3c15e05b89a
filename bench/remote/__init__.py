"""A store on the loopback, as far away and as narrow as is asked for."""
