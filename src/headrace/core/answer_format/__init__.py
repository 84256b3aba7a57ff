"""The parts of a chat answer: reasoning, content and calls in message headers. Pure; for wire and engine."""
