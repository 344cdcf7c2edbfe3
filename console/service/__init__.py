"""The services of an engine's process: the local client, the advisor, drafting, the collector of history. It imports
the other packages, and views, client, forms and text of the console; no screen and no HTTP. Start at `local_client`."""
