"""Demand, capacity and spot prices ahead, with their calibration. Imports history. Start at `demand`."""
