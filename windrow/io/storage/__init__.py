"""Filesystems and object storage: paths, exact reads with retries, versions of files, errors without secrets.

May import: no other room.
In: the paths and filesystems that users pass.
Out: bytes of checked length, versions, and errors that name the file and a fix. Only this room imports fsspec.
"""
