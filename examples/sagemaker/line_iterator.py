"""Read the response stream of an endpoint line by line."""

import io


class LineIterator:
    """Joins the lines of an event stream, because a line may arrive in several parts."""

    def __init__(self, stream):
        self._parts = iter(stream)
        self._buffer = io.BytesIO()
        self._position = 0

    def __iter__(self):
        return self

    def __next__(self):
        while True:
            self._buffer.seek(self._position)
            line = self._buffer.readline()
            if line.endswith(b"\n"):
                self._position += len(line)
                return line[:-1]
            part = next(self._parts)
            self._buffer.seek(0, io.SEEK_END)
            self._buffer.write(part["PayloadPart"]["Bytes"])
