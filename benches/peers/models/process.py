"""Measures a program."""

import os
import subprocess
import sys


def measured(command):
    """Runs a program; returns its peak resident memory in MiB. That includes the memory of the caller at the start."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    stderr = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"{' '.join(command)}: {stderr.decode()}")
    return usage.ru_maxrss / 1024
