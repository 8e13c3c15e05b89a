"""Adapters to other libraries' data, one file per library; each library is imported only when used."""
