"""Internal: keeps secrets out of messages, events, errors, logs and spans."""
