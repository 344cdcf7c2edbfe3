"""The checks at the door: a submission, a definition or a change is accepted or refused here, before anything changes.
It imports the rooms of the engine below it: placement, state, capacity and model. Start at `submissions`."""
