"""
Write blobs from several threads until killed, and print a line for each write.

Run it by `python -m tests.platform.state.blob_writer WHERE FILE`.
"""

import itertools
import sys
import threading
from pathlib import Path

from headrace.platform.state.blobs import Blobs, open_blobs


def write(blobs: Blobs, thread: int) -> None:
    for number in itertools.count():
        key = f"{thread}-{number}"
        blobs.put("space", key, key.encode(), b"body")
        print(f"made {key}\n", end="", flush=True)
        if number % 3 == 0:
            blobs.delete("space", key)
            print(f"removed {key}\n", end="", flush=True)


def main() -> None:
    blobs = open_blobs(sys.argv[1], Path(sys.argv[2]))
    for thread in range(4):
        threading.Thread(target=write, args=(blobs, thread)).start()


if __name__ == "__main__":
    main()
