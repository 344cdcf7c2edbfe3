"""Services beside the engine that answer clients: collector, advisor, quotes, drafting, notifier. Imports engine,
recommender and runbooks; no screen and no HTTP. Start at `local_client`."""
