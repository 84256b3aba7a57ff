"""Jobs: work on many objects that begins, ends and leaves nothing running, such as batch transform."""
