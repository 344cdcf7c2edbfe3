"""What runs tasks. The engine tells an executor what to start and stop; the executor reports back."""
