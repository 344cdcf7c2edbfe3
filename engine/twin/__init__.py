"""The digital twin: forks of the live cell that run ahead, for what-if, start times, rehearsals and counterfactuals. It
imports the door `engine.control` and every room that a fork needs, but neither traces nor scenarios. Start at
`live_twin`."""
