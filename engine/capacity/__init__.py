"""Free capacity: the index, devices and MIG, topology, and scores. Imports model and tables; start at `index`."""
