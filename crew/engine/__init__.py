"""The engine: the loop and the steps that do I/O. Internal."""
