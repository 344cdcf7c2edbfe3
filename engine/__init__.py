"""The allocation engine: specs, events, state, scheduling and journal. It imports neither screens nor models. Start at
`engine.control`, the only entry point, then read `engine.scheduling.cycle`.
"""
