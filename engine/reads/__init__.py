"""Answers to queries: lists, details, reasons, gauges and reports. Imports state and the packages that it explains, and
changes nothing; start at `answers`.
"""
