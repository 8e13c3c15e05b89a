"""All operating system calls of the disk cache, so that tests can make each of them fail.

The cache uses `os`, `mmap`, `shutil` and `windrow.core.system` only through this module. A test or a simulation
replaces attributes of this module.
"""

from __future__ import annotations

import mmap
import os
import shutil

from windrow.core.system import files, locks

close = os.close
disk_usage = shutil.disk_usage
fstat = os.fstat
fsync = os.fsync
ftruncate = os.ftruncate
listdir = os.listdir
lstat = os.lstat
makedirs = os.makedirs
map_file = mmap.mmap
open_file = files.open_file
open_nameless = files.open_nameless
pread = files.pread
preadv = files.preadv
pwrite = files.pwrite
read_link = files.read_link
remove_tree = shutil.rmtree
rename = os.replace
stat = os.stat
try_lock = locks.try_lock
try_lock_byte = locks.try_lock_byte
unlink = os.unlink
write_link = files.write_link
