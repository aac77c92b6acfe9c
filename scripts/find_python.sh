#!/bin/sh
# Print a Python 3.10, 3.11 or 3.12 that has venv and its shared library (Triton's stub embeds it).
# With --explain, say what is missing and how to install it.
check='
import os, sys, sysconfig, ctypes, venv, ensurepip
assert (3, 10) <= sys.version_info < (3, 13), "is Python %d.%d, not 3.10 to 3.12" % sys.version_info[:2]
name = sysconfig.get_config_var("INSTSONAME") or ""
if ".so" not in name:
    name = "libpython%d.%d.so.1.0" % sys.version_info[:2]
path = os.path.join(sysconfig.get_config_var("LIBDIR") or "", name)
try:
    ctypes.CDLL(path if os.path.exists(path) else name)
except OSError:
    sys.exit("lacks %s (Debian, Ubuntu: apt-get install libpython%d.%d)" % ((name,) + sys.version_info[:2]))
'
for candidate in python3 python3.12 python3.11 python3.10; do
    found=$(command -v "$candidate") || continue
    if reason=$("$found" -c "$check" 2>&1); then
        echo "$found"
        exit 0
    fi
    [ "${1:-}" = --explain ] && echo "$found $(echo "$reason" | tail -n 1)" >&2
done
[ "${1:-}" = --explain ] && cat >&2 <<'TEXT'
No usable Python was found. cog-triton needs Python 3.10, 3.11 or 3.12 with venv and its shared library.
Debian 12:    apt-get install python3 python3-venv libpython3.11
Ubuntu 22.04: apt-get install python3 python3-venv libpython3.10
TEXT
exit 1
