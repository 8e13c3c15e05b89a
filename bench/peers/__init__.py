"""The measured systems: one small adapter each, run in a process of its own. Imports training, data and system."""
