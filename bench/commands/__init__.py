"""Subcommands of one module each. Imports everything but the command line and other subcommands."""
