"""``python -m highwater``: runs the command of this package with the same arguments and exit code."""

import os
import subprocess
import sys

import highwater


def main() -> int:
    try:
        command = [highwater.find_command(), *sys.argv[1:]]
    except highwater.HighwaterError as error:
        print(f"highwater: {error}", file=sys.stderr)
        # As shells report a missing command.
        return 127
    if os.name != "nt":
        os.execv(command[0], command)
    # Windows has no replacement of processes.
    process = subprocess.Popen(command)
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            # The console interrupts the command too, which decides.
            pass


if __name__ == "__main__":
    sys.exit(main())
