"""All operating system calls of the disk cache, so that tests can make each of them fail.

The cache uses `os`, `fcntl`, `mmap` and `shutil` only through this module. A test or a simulation
replaces attributes of this module.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import shutil

__all__ = [
    "close",
    "flock",
    "fstat",
    "fsync",
    "ftruncate",
    "listdir",
    "lstat",
    "makedirs",
    "map_file",
    "open_file",
    "pread",
    "preadv",
    "pwrite",
    "readlink",
    "remove_tree",
    "rename",
    "set_lock",
    "stat",
    "statvfs",
    "symlink",
    "unlink",
]

close = os.close
flock = fcntl.flock
fstat = os.fstat
fsync = os.fsync
ftruncate = os.ftruncate
listdir = os.listdir
lstat = os.lstat
makedirs = os.makedirs
map_file = mmap.mmap
open_file = os.open
pread = os.pread
preadv = os.preadv
pwrite = os.pwrite
readlink = os.readlink
remove_tree = shutil.rmtree
rename = os.replace
set_lock = fcntl.fcntl
stat = os.stat
statvfs = os.statvfs
symlink = os.symlink
unlink = os.unlink
