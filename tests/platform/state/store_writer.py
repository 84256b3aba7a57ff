"""
Write to a store until killed, and print a line for each write.

Run it by `python -m tests.platform.state.store_writer WHERE`.
"""

import itertools
import sys

from headrace.platform.state.store import open_store
from tests.platform.state.kinds import WORKER


def main() -> None:
    store = open_store(sys.argv[1])
    for number in itertools.count():
        made = store.create(WORKER, f"w{number}", spec={"number": number, "filling": "x" * 500})
        print("made", number, flush=True)
        store.update(made, status={"number": number})
        print("written", number, flush=True)
        if number % 3 == 0:
            found = store.get(WORKER, f"w{number}")
            assert found is not None
            store.remove(found)
            print("removed", number, flush=True)


if __name__ == "__main__":
    main()
