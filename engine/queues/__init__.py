"""The tree of queues: quota and fair shares. Imports model and tables. Start at `tree`."""
