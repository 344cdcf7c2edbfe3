"""What is free where: the capacity index, devices and MIG, topology, scores. Imports model and tables. Start at
`index`."""
