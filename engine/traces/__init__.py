"""Traces of work: readers of public formats, generated days, and replay through an engine. It imports state, capacity
and model of the engine, and the door `engine.control` for replay. Start at `trace_reader`, then read `replay`."""
