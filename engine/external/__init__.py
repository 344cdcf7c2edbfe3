"""Cells that another scheduler decides: what was observed there becomes events, and what people want becomes intents
that are carried out there. It imports the rooms of the engine below it and, where it carries, the door
`engine.control`. Start at `observed_changes`, then read `mirror_passes`."""
